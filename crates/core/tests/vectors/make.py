#!/usr/bin/env python3
"""Writes the vectors next to it: python3 make.py

An independent reading of the algorithms in exact fractions. The vectors are what every
implementation has to answer, in Rust and in Lua alike: for each step the verdict, what is
reported, and the integers that are kept.

A step charges `cost` at `at` (microseconds since the epoch). `refund: n` takes the charge of step
n back instead; `limit` changes the limit first. Times in the answers are microseconds from `at`;
`retry_after` is null when the step is allowed and -1 when it never will be.

The window of `concurrency` is its hold. `renew: n` holds on what step n took; its state is the last id that was given
out, then id, end and count of what is held.

In holds.json a step asks for a cost and a hold. `reports` lists node, number, spent and closed;
`holds` lists node, number, amount, spent and until of what is held after it. `owed` lists when and how much
in all was admitted without asking.
"""
import copy
import json
import pathlib
import random
from fractions import Fraction
from math import ceil, gcd

HERE = pathlib.Path(__file__).parent
SECOND = 1_000_000
NEVER = -1
MOST, LONGEST_DEBT = 2**52, 36_500 * 86_400 * SECOND


class Bucket:
    """Token bucket and leaky bucket: the instant at which it is full, or drained."""

    def __init__(self, limit):
        self.leaky = limit["algorithm"] == "leaky_bucket"
        self.interval = Fraction(limit["window"], limit["amount"])
        self.capacity = limit["queue"] + 1 if self.leaky else limit.get("burst", limit["amount"])
        self.parts = limit["amount"] // gcd(limit["window"], limit["amount"])
        self.full = Fraction(0)
        self.returned = Fraction(0)

    def used(self, now):
        return max(Fraction(0), self.full - now) / self.interval

    def fits(self, now, cost):
        return cost <= self.capacity and self.used(now) + cost <= self.capacity

    def spend(self, now, cost):
        delay = ceil(max(Fraction(0), self.full - now)) if self.leaky else 0
        self.full = max(self.full, Fraction(now)) + cost * self.interval
        return delay, self.full if self.leaky else self.full + self.returned

    def refund(self, now, until, cost):
        if self.leaky:
            if self.full == until and until - cost * self.interval > now:
                self.full = until - cost * self.interval
        else:
            is_last = until == self.full + self.returned
            until -= self.returned
            back = min(max(Fraction(0), until - now), cost * self.interval, max(Fraction(0), self.full - now))
            self.full -= back
            self.returned += 0 if is_last else back

    def remaining(self, now):
        return int(self.capacity - self.used(now)) if self.used(now) < self.capacity else 0

    def fits_at(self, now, cost):
        return max(now, ceil(self.full + (cost - self.capacity) * self.interval))

    def whole_at(self, now):
        return max(now, ceil(self.full))

    def adopt(self, old, now):
        if self.leaky:
            self.full = Fraction(ceil(old.full * self.parts), self.parts)
        elif old.full > now:
            used = min(1, old.used(now) / old.capacity) * self.capacity * self.interval
            self.full = now + Fraction(ceil(used * self.parts), self.parts)

    def owe(self, at, cost):
        """Spends at an instant that may be over, whether or not it fits."""
        most = at + 2 * self.capacity * self.interval
        if cost:
            self.full = max(self.full, min(max(self.full, Fraction(at)) + cost * self.interval, most))

    def count(self, now, _at, amount):
        """Spends all of it now, and is in debt for it."""
        most = now + self.capacity * self.interval + LONGEST_DEBT
        if amount:
            self.full = max(self.full, min(max(self.full, Fraction(now)) + amount * self.interval, most))

    def countable(self):
        return min(MOST, LONGEST_DEBT // self.interval)

    def settle(self, now):
        """What refunds gave back no longer matters once no slip from before them counts."""
        if self.full + self.returned <= now:
            self.returned = Fraction(0)

    def state(self, now):
        times = [self.full] if self.leaky else [self.full, self.returned]
        return [n for time in times for n in (int(time), int((time - int(time)) * self.parts))]


class Window:
    """Fixed and sliding windows: what was spent in each aligned window."""

    def __init__(self, limit):
        self.window, self.capacity = limit["window"], limit["amount"]
        self.sliding = limit["algorithm"] == "sliding_window"
        self.spent = {}

    def counts(self, now):
        index = now // self.window
        return self.spent.get(index, 0), self.spent.get(index - 1, 0) if self.sliding else 0

    def used(self, now):
        current, previous = self.counts(now)
        return current + Fraction(previous * (self.window - now % self.window), self.window)

    def fits(self, now, cost):
        return self.used(now) + cost <= self.capacity

    def spend(self, now, cost):
        index = now // self.window
        self.spent[index] = self.spent.get(index, 0) + cost
        return 0, index

    def owe(self, at, cost):
        """Spends at an instant that may be over, whether or not it fits."""
        spent = self.spent.get(at // self.window, 0)
        self.spent[at // self.window] = max(spent, min(spent + cost, self.capacity))

    def count(self, _now, at, amount):
        """Spends all of it, whether or not it fits."""
        spent = self.spent.get(at // self.window, 0)
        self.spent[at // self.window] = max(spent, min(spent + amount, MOST))

    def countable(self):
        return MOST

    def refund(self, now, index, cost):
        keeps = (now // self.window,) if not self.sliding else (now // self.window, now // self.window - 1)
        if index in keeps:
            self.spent[index] -= cost

    def remaining(self, now):
        return max(0, int(self.capacity - self.used(now) // 1 - (1 if self.used(now) % 1 else 0)))

    def fits_at(self, now, cost):
        start = now - now % self.window
        low, high = now, start + 2 * self.window
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.fits(middle, cost) else (middle + 1, high)
        return low

    def whole_at(self, now):
        current, previous = self.counts(now)
        end = now - now % self.window + self.window
        if current:
            return end + self.window if self.sliding else end
        return end if previous else now

    def adopt(self, old, now):
        current, previous = old.counts(now)
        if self.window != old.window:
            current, previous = ceil(old.used(now)), 0
        index = now // self.window
        self.spent = {index: current, index - 1: previous}

    def state(self, now):
        current, previous = self.counts(now)
        end = now - now % self.window + self.window
        return [end, current, previous] if self.sliding else [end, current]


class Log:
    """Sliding log: everything that was spent, with its time."""

    def __init__(self, limit):
        self.window, self.capacity = limit["window"], limit["amount"]
        self.log = []

    def live(self, now):
        return [(at, cost) for at, cost in self.log if at + self.window > now]

    def fits(self, now, cost):
        return sum(cost for _, cost in self.live(now)) + cost <= self.capacity

    def spend(self, now, cost):
        self.log.append((now, cost))
        return 0, now

    def refund(self, now, at, cost):
        if (at, cost) in self.log:
            self.log.remove((at, cost))

    def remaining(self, now):
        return max(0, self.capacity - sum(cost for _, cost in self.live(now)))

    def fits_at(self, now, cost):
        instants = [now] + [at + self.window for at, _ in self.live(now)]
        return min(instant for instant in instants if self.fits(instant, cost))

    def whole_at(self, now):
        return max([now] + [at + self.window for at, _ in self.live(now)])

    def adopt(self, old, now):
        self.log = old.live(now)

    def state(self, now):
        merged = {}
        for at, cost in self.live(now):
            merged[at] = merged.get(at, 0) + cost
        return [number for pair in sorted(merged.items()) for number in pair]


class Slots:
    """Concurrency: by name until when a slot is held and its weight; 0 and the instant of the release once it is released.

    What is over is noted for a minute, at most 1,024 notes. `complete` is the first name from which on nothing was lost:
    a name from there on without a note was released.
    """

    MEMORY, MOST_NOTES = 60 * SECOND, 1_024

    def __init__(self, limit):
        self.hold, self.capacity = limit["window"], limit["amount"]
        self.notes, self.last, self.complete = {}, 0, 0

    def live(self, now):
        return {name: note for name, note in self.notes.items() if note[0] > now and note[1]}

    def drop_old(self, now):
        over = [(name, *note) for name, note in self.notes.items() if note[0] <= now]
        memory = self.MEMORY if len(over) <= self.MOST_NOTES else 0
        for name, until, count in over:
            if until + memory <= now:
                del self.notes[name]
                self.complete = max(self.complete, name + 1 if count else 0)

    def known_released(self, name):
        return self.complete <= name <= self.last

    def note_unknown(self, now, name, note):
        self.complete = max(self.complete or now, name + 1)
        self.last = max(self.last, name)
        self.notes[name] = note

    def used(self, now):
        return sum(count for _, count in self.live(now).values())

    def fits(self, now, cost):
        return self.used(now) + cost <= self.capacity

    def spend(self, now, cost):
        self.drop_old(now)
        self.last, self.complete = max(now, self.last + 1), self.complete or now
        self.notes[self.last] = (now + self.hold, cost)
        return 0, self.last

    def refund(self, now, name, _cost):
        self.drop_old(now)
        if name not in self.notes:
            if self.known_released(name):
                return
            self.note_unknown(now, name, (now, 0))
        elif self.notes[name][1]:
            may_be_forgotten = any(name <= other and until <= now and count for other, (until, count) in self.notes.items())
            self.notes[name] = (now, 0)
            if name >= self.complete and not may_be_forgotten:
                del self.notes[name]
        else:
            return
        self.last = max(self.last, now)

    def renew(self, now, name, cost):
        self.drop_old(now)
        if name in self.notes:
            until, count = self.notes[name]
            if count:
                self.notes[name] = (max(until, now + self.hold), count)
        elif not self.known_released(name):
            self.note_unknown(now, name, (now + self.hold, cost))

    def remaining(self, now):
        return max(0, self.capacity - self.used(now))

    def fits_at(self, now, cost):
        instants = [now] + [until for until, _ in self.live(now).values()]
        return min(instant for instant in instants if self.fits(instant, cost))

    def whole_at(self, now):
        return max([now] + [until for until, _ in self.live(now).values()])

    def adopt(self, old, now):
        old.drop_old(now)
        self.notes, self.last, self.complete = dict(old.notes), old.last, old.complete

    def state(self, now):
        self.drop_old(now)
        notes = sorted(self.notes.items())
        return [self.last, self.complete] + [number for name, (until, count) in notes for number in (name, until, count)]


def meter(limit):
    kinds = {"concurrency": Slots, "token_bucket": Bucket, "leaky_bucket": Bucket, "sliding_log": Log}
    return kinds.get(limit["algorithm"], Window)(limit)


def play(name, limit, script):
    """Runs a script of steps and writes down what they must answer."""
    client, charged, steps = meter(limit), {}, []
    current = limit
    for number, step in enumerate(script):
        step = dict(step)
        now = step["at"]
        if "limit" in step:
            successor = meter(step["limit"])
            successor.adopt(client, now)
            client, current, charged = successor, step["limit"], {}
        if isinstance(client, Bucket):
            client.settle(now)
        if "refund" in step:
            if step["refund"] in charged:
                mark, cost = charged[step["refund"]]
                client.refund(now, mark, cost)
                if not isinstance(client, Slots):
                    del charged[step["refund"]]
        elif "renew" in step:
            if step["renew"] in charged:
                client.renew(now, *charged[step["renew"]])
        elif "lose" in step:
            client = meter(current)
        elif "cost" in step:
            cost = step["cost"]
            asked = max(1, cost)
            step["allowed"] = asked <= client.capacity and client.fits(now, asked)
            step["delay"] = 0
            step["retry_after"] = None
            if step["allowed"] and cost:
                step["delay"], mark = client.spend(now, cost)
                charged[number] = (mark, cost)
            elif step["allowed"] and isinstance(client, Bucket) and client.leaky:
                step["delay"] = ceil(max(Fraction(0), client.full - now))
            elif not step["allowed"]:
                never = asked > client.capacity
                step["retry_after"] = NEVER if never else client.fits_at(now, asked) - now
            step["remaining"] = client.remaining(now)
            step["reset_after"] = client.whole_at(now) - now
        step["state"] = client.state(now)
        steps.append(step)
    return {"name": name, "limit": limit, "steps": steps}


def rest(hold, capacity):
    return min(hold["amount"], capacity) - min(hold["spent"], capacity)


def usable(kept):
    return max(0, kept - 10_000) * 100 // 101


def lease(client, holds, now, ask):
    """Decides one ask: expiry, what is owed, reports, the cost, a new hold."""
    for hold in [hold for hold in holds if hold["until"] <= now]:
        client.owe(hold["until"] - 1, rest(hold, client.capacity))
        holds.remove(hold)
    if ask.get("owed"):
        name = (ask["node"], ask["number"])
        known = max([hold["spent"] for hold in holds if hold["id"] == name], default=0)
        for at, total in ask["owed"]:
            total = min(total, client.countable())
            client.count(now, min(at, now), max(0, total - known))
            known = max(known, total)
        holds[:] = [hold for hold in holds if hold["id"] != name
                    and not (hold["spent"] == hold["amount"] and hold["id"][0] == name[0])]
        if len(holds) < 64:
            until = now + min(ask["life"], 3_600 * SECOND)
            holds.append({"id": name, "amount": known, "spent": known, "until": until})
    for node, number, spent, closed in ask["reports"]:
        for hold in [hold for hold in holds if hold["id"] == (node, number)]:
            before = rest(hold, client.capacity)
            hold["spent"] = max(hold["spent"], min(spent, hold["amount"]))
            client.owe(now, before - rest(hold, client.capacity))
            if closed or hold["spent"] == hold["amount"]:
                holds.remove(hold)
    seen = copy.deepcopy(client)
    seen.owe(now, min(client.capacity, sum(rest(hold, client.capacity) for hold in holds)))
    cost = max(1, ask["cost"])
    allowed = cost <= client.capacity and seen.fits(now, cost)
    wait = None
    if allowed and ask["cost"]:
        client.spend(now, cost)
        seen.spend(now, cost)
    elif not allowed:
        wait = NEVER if cost > client.capacity else seen.fits_at(now, cost) - now
    answer = {"allowed": allowed, "retry_after": wait, "remaining": seen.remaining(now),
              "reset_after": seen.whole_at(now) - now, "held": 0, "life_granted": 0}
    life, free = min(ask["life"], 3_600 * SECOND), answer["remaining"]
    known = [hold for hold in holds if hold["id"] == (ask["node"], ask["number"])]
    if not ask["want"] or ask.get("owed"):
        return answer
    if known:
        answer["held"], answer["life_granted"] = known[0]["amount"], min(life, usable(known[0]["until"] - now))
        return answer
    if isinstance(client, Window):
        life = min(life, usable(client.window - now % client.window))
    amount = ask["want"]
    while amount > min(free, max(1, free // (2 * max(1, ask["nodes"])))):
        amount //= 2
    if amount and life and len(holds) < 64:
        until = now + life + life // 100 + 10_000
        holds.append({"id": (ask["node"], ask["number"]), "amount": amount, "spent": 0, "until": until})
        answer["held"], answer["life_granted"] = amount, life
    return answer


def play_asks(name, limit, script):
    """Runs a script of asks and writes down what they must answer."""
    client, holds, steps = meter(limit), [], []
    for step in script:
        now = step["at"]
        if "limit" in step:
            successor = meter(step["limit"])
            successor.adopt(client, now)
            client = successor
        answer = lease(client, holds, now, step)
        listed = [[*hold["id"], hold["amount"], hold["spent"], hold["until"]] for hold in holds]
        steps.append({**step, **answer, "state": client.state(now), "holds": listed})
    return {"name": name, "limit": limit, "steps": steps}


def walk_asks(seed, limit, count=40, other=None):
    """A random walk of a few nodes that ask, report, close, repeat themselves and lose their way."""
    chance = random.Random(seed)
    now, script, asked = 1_780_000_000_123_457 + chance.randrange(10**9), [], []
    capacity = meter(limit).capacity
    lives = [5_000, 100_000, SECOND, limit["window"], 10**13]
    for number in range(count):
        if chance.random() < 0.5:
            life = chance.choice(lives[:4])
            now += chance.choice([0, 1, life // 7, life, limit["window"] // 5, limit["window"]])
        reports = [[*chance.choice(asked), chance.choice([0, 1, 2, capacity // 7, capacity]), chance.random() < 0.3]
                   for _ in range(chance.randrange(4)) if asked]
        name = chance.choice(asked) if asked and chance.random() < 0.1 else [chance.choice([0, 7, 2**64 - 1]), number]
        asked.append(name)
        script.append({
            "at": now, "cost": chance.choice([0, 0, 1, 1, 2, max(1, capacity // 5), capacity + 1]),
            "want": chance.choice([0, 1, 5, 100, max(1, capacity // 3), capacity, 2**60]), "node": name[0], "number": name[1],
            "reports": reports, "life": chance.choice(lives), "nodes": chance.choice([0, 1, 1, 2, 8, 2**40])})
        if other and number in (count // 3, 2 * count // 3):
            script[-1]["limit"] = other if number == count // 3 else limit
    return script


def walk_owed(seed, limit, count=20, other=None):
    """Nodes that admit on their own and tell so, some of it again or late, while others hold."""
    chance = random.Random(seed)
    script = walk_asks(seed, limit, count, other)
    capacity, names, totals = meter(limit).capacity, {}, {}
    for number, step in enumerate(script):
        if chance.random() < 0.4:
            continue
        node = chance.choice([101, 102, 2**63])
        if node not in names or chance.random() < 0.3:
            names[node], totals[node] = number, []
        told = totals[node]
        for _ in range(chance.randrange(3)):
            more = chance.choice([0, 1, capacity // 3, capacity, 5 * capacity, 2**51])
            last = told[-1][1] if told else 0
            told.append([step["at"] - chance.choice([0, 1, limit["window"] // 2, limit["window"]]), min(last + more, 2**60)])
        if told and chance.random() < 0.2:
            told[-1][0] = 2**60
        step.update(node=node, number=names[node], owed=[list(one) for one in told[chance.randrange(len(told)):]] if told else [])
    return script


def asks(numbers):
    for algorithm in ("token_bucket", "fixed_window", "sliding_window"):
        for seed, (amount, window) in enumerate(numbers):
            more = {"burst": min(2**52, amount * 3)} if algorithm == "token_bucket" and seed % 2 else {}
            limit = limit_of(algorithm, amount, window, **more)
            other = limit_of(algorithm, max(1, amount // 3), min(window * (1 + seed % 2), 3_650 * 86_400 * SECOND))
            yield play_asks(f"walk {seed}: {amount} per {window} us", limit, walk_asks(seed, limit))
            yield play_asks(f"walk {seed} with a change of limit", limit, walk_asks(seed + 100, limit, other=other))
            yield play_asks(f"walk {seed} of nodes that owe", limit, walk_owed(seed + 200, limit))
            yield play_asks(f"walk {seed} of nodes that owe, with a change of limit", limit,
                            walk_owed(seed + 300, limit, other=other))


def limit_of(algorithm, amount, window, **more):
    return {"algorithm": algorithm, "amount": amount, "window": window, **more}


def walk(seed, limit, count=60, other=None):
    """A random walk: bursts, pauses, refunds, looks, costs that never fit, a change and back."""
    chance = random.Random(seed)
    now, script = 1_780_000_000_123_457 + chance.randrange(10**9), []
    capacity = meter(limit).capacity
    for number in range(count):
        roll = chance.random()
        if roll < 0.35:
            now += chance.choice([0, 1, limit["window"] // 3, limit["window"], chance.randrange(1, limit["window"] * 2)])
        if other and number in (count // 3, 2 * count // 3):
            script.append({"at": now, "limit": other if number == count // 3 else limit, "cost": 1})
        elif limit["algorithm"] == "concurrency" and 0.7 < roll and script:
            # Most of what is taken is held for a while and given back.
            script.append({"at": now, chance.choice(["refund", "refund", "renew"]): chance.randrange(max(0, number - 9), number)})
        elif roll > 0.9 and script:
            script.append({"at": now, "refund": chance.randrange(len(script))})
        else:
            costs = [1, 1, 1, 0, 2, max(1, capacity // 3), capacity, capacity + 1]
            script.append({"at": now, "cost": chance.choice(costs)})
    return script


def walk_lost(seed, limit, count=80):
    """Slots that are released late or twice, renewed late or after a release, and a store that loses its state."""
    chance = random.Random(seed)
    now, script, taken = 1_780_000_000_123_457 + chance.randrange(10**9), [], []
    capacity = meter(limit).capacity
    for number in range(count):
        now += chance.choice([0, 0, 1, limit["window"] // 3, limit["window"], 59 * SECOND, 61 * SECOND])
        roll = chance.random()
        if roll < 0.08:
            script.append({"at": now, "lose": True})
        elif roll < 0.6 and taken:
            script.append({"at": now, chance.choice(["refund", "renew", "renew"]): chance.choice(taken[-6:])})
        else:
            taken.append(number)
            script.append({"at": now, "cost": chance.choice([1, 1, 2, capacity])})
    return script


def textbook(algorithm):
    boundary = [{"at": 850_000, "cost": 1}] * 20 + [{"at": 1_000_000, "cost": 1}] * 20
    if algorithm == "token_bucket":
        limit = limit_of(algorithm, 10, SECOND, burst=50)
        steady = [{"at": SECOND + tick * 200_000, "cost": 1} for tick in range(1, 51)]
        yield play("burst of 30 into capacity 50 leaves 20, then 5/s is never denied",
                   limit, [{"at": SECOND, "cost": 30}] + steady)
    if algorithm in ("fixed_window", "sliding_window", "sliding_log"):
        yield play("20 at 85 % of a second, 20 after it", limit_of(algorithm, 20, SECOND), boundary)
    if algorithm == "concurrency":
        limit = limit_of(algorithm, 2, SECOND)
        yield play("who releases twice, or after the hold, releases nobody else", limit, [
            {"at": SECOND, "cost": 1}, {"at": SECOND, "refund": 0}, {"at": SECOND, "cost": 1}, {"at": SECOND, "refund": 0},
            {"at": SECOND, "cost": 1}, {"at": SECOND, "cost": 1}, {"at": 2 * SECOND, "cost": 2}, {"at": 2 * SECOND, "refund": 2},
            {"at": 2 * SECOND, "cost": 1}])
        yield play("a holder that renews keeps its slot, one that does not loses it", limit, [
            {"at": SECOND, "cost": 1}, {"at": SECOND, "cost": 1}, {"at": 1_700_000, "renew": 0}, {"at": 1_900_000, "cost": 1},
            {"at": 2 * SECOND, "cost": 1}, {"at": 2_100_000, "cost": 1}, {"at": 2_700_000, "cost": 1}])
        yield play("a renewal after the hold counts again, above the limit, and new requests are denied until they fit", limit, [
            {"at": SECOND, "cost": 2}, {"at": 2 * SECOND, "cost": 2}, {"at": 2 * SECOND, "renew": 0}, {"at": 2_100_000, "cost": 1},
            {"at": 2_200_000, "refund": 1}, {"at": 2_200_000, "cost": 1}, {"at": 2_300_000, "refund": 0}, {"at": 2_300_000, "cost": 2}])
        yield play("a renewal after the state was lost counts again", limit, [
            {"at": SECOND, "cost": 1}, {"at": SECOND, "cost": 1}, {"at": SECOND + 9, "lose": True}, {"at": SECOND + 9, "cost": 2},
            {"at": SECOND + 10, "renew": 0}, {"at": SECOND + 11, "renew": 1}, {"at": SECOND + 12, "cost": 0},
            {"at": SECOND + 13, "refund": 3}, {"at": SECOND + 14, "cost": 1}, {"at": SECOND + 15, "refund": 0},
            {"at": SECOND + 16, "cost": 1}])
        yield play("a renewal after the release revives nothing: released in time, after the hold, after a loss, and below a slot that expired",
                   limit, [
            {"at": SECOND, "cost": 1}, {"at": SECOND + 1, "refund": 0}, {"at": SECOND + 2, "renew": 0},
            {"at": SECOND + 3, "cost": 1}, {"at": 3 * SECOND, "refund": 3}, {"at": 3 * SECOND + 1, "renew": 3},
            {"at": 4 * SECOND, "cost": 1}, {"at": 4 * SECOND, "lose": True}, {"at": 4 * SECOND + 1, "refund": 6}, {"at": 4 * SECOND + 2, "renew": 6},
            {"at": 5 * SECOND, "cost": 1}, {"at": 5 * SECOND, "cost": 1}, {"at": 5_900_000, "renew": 10}, {"at": 6_100_000, "refund": 10},
            {"at": 6_100_001, "renew": 10}, {"at": 65_999_999, "renew": 10}, {"at": 66_099_999, "renew": 10}])
    if algorithm == "leaky_bucket":
        yield play("ten at once into a queue of four", limit_of(algorithm, 10, SECOND, queue=4),
                   [{"at": SECOND, "cost": 1}] * 10)


def main():
    month = 30 * 86_400 * SECOND
    numbers = [(5, SECOND), (100, 60 * SECOND), (7, 1_000), (3, 86_400 * SECOND), (9_973, 3_600 * SECOND)]
    large = [(10**12, month), (999_999_999_989, month), (10**7, SECOND), (2**52, 3_650 * 86_400 * SECOND)]
    for algorithm in ("token_bucket", "leaky_bucket", "fixed_window", "sliding_window", "sliding_log", "concurrency"):
        cases = list(textbook(algorithm))
        chosen = numbers if algorithm == "sliding_log" else numbers + large
        if algorithm == "concurrency":
            chosen = [(1, SECOND), (2, 60 * SECOND), (5, SECOND), (20, 60 * SECOND), (10_000, 1_800 * SECOND)]
        for seed, (amount, window) in enumerate(chosen):
            more = {"queue": seed * 3} if algorithm == "leaky_bucket" else {}
            if algorithm == "token_bucket" and seed % 2:
                more = {"burst": max(1, amount // 2) if seed % 4 == 1 else min(2**52, amount * 3)}
            limit = limit_of(algorithm, amount, window, **more)
            other = limit_of(algorithm, max(1, amount * 2 // 3), window * (1 + seed % 2), **({"queue": 2} if algorithm == "leaky_bucket" else {}))
            cases.append(play(f"walk {seed}: {amount} per {window} us", limit, walk(seed, limit)))
            if window * (1 + seed % 2) <= 3_650 * 86_400 * SECOND:
                cases.append(play(f"walk {seed} with a change of limit", limit, walk(seed + 100, limit, other=other)))
            if algorithm == "concurrency":
                cases.append(play(f"walk {seed} with losses", limit, walk_lost(seed + 200, limit)))
        lines = ",\n".join("  " + json.dumps(case) for case in cases)
        (HERE / f"{algorithm}.json").write_text(f"[\n{lines}\n]\n")
    lines = ",\n".join("  " + json.dumps(case) for case in asks(numbers + large))
    (HERE / "holds.json").write_text(f"[\n{lines}\n]\n")


main()
