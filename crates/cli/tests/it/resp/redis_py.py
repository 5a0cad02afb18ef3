"""redis-py against the RESP listener: python3 redis_py.py PORT PORT_WITH_PASSWORD"""

import asyncio
import sys

import redis
import redis.asyncio

port, guarded = map(int, sys.argv[1:])


def wanted(found, expected):
    assert found == expected, f"found {found!r}, wanted {expected!r}"


for protocol in (2, 3):
    client = redis.Redis(port=port, protocol=protocol, client_name="app", decode_responses=True)
    key = f"py-{protocol}"
    wanted(client.ping(), True)
    wanted(client.echo("hé"), "hé")
    wanted(client.client_getname(), "app")
    wanted(client.execute_command("CL.THROTTLE", key, 15, 30, 60), [0, 16, 15, -1, 2])
    wanted(client.execute_command("TG.CHECK", "api", key, 2)[:4], [0, 5, 3, -1])
    wanted(client.info()["redis_mode"], "standalone")
    wanted(client.config_get("save"), {"save": ""})
    pipeline = client.pipeline(transaction=False)
    for _ in range(100):
        pipeline.execute_command("CL.THROTTLE", key + "-many", 49, 1, 864000)
    answers = pipeline.execute()
    wanted([answer[2] for answer in answers], [max(49 - place, 0) for place in range(100)])
    wanted([answer[0] for answer in answers], [0] * 50 + [1] * 50)
    try:
        client.get("a")
        raise AssertionError("GET was answered")
    except redis.ResponseError as error:
        wanted(str(error), "unknown command 'GET', with args beginning with: 'a' ")
    client.close()

    try:
        redis.Redis(port=guarded, protocol=protocol).ping()
        raise AssertionError("a stranger was answered")
    except redis.AuthenticationError:
        pass
    known = redis.from_url(f"redis://:sesame@127.0.0.1:{guarded}/0?protocol={protocol}")
    wanted(known.execute_command("TG.CHECK", "api", key)[0], 0)
    known.close()


async def many():
    client = redis.asyncio.Redis(port=port)
    asked = (client.execute_command("CL.THROTTLE", "py-async", 19, 1, 864000) for _ in range(40))
    answers = await asyncio.gather(*asked)
    wanted(sum(answer[0] for answer in answers), 20)
    await client.aclose()


asyncio.run(many())
print("fine")
