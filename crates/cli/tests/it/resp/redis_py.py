"""redis-py against the RESP listener: python3 redis_py.py PORT PORT_WITH_PASSWORD"""

import asyncio
import sys

import redis
import redis.asyncio

port, password_port = map(int, sys.argv[1:])


def assert_equal(found, expected):
    assert found == expected, f"found {found!r}, wanted {expected!r}"


for protocol in (2, 3):
    client = redis.Redis(port=port, protocol=protocol, client_name="app", decode_responses=True)
    key = f"py-{protocol}"
    assert_equal(client.ping(), True)
    assert_equal(client.echo("hé"), "hé")
    assert_equal(client.client_getname(), "app")
    assert_equal(client.execute_command("CL.THROTTLE", key, 15, 30, 60), [0, 16, 15, -1, 2])
    assert_equal(client.execute_command("TG.CHECK", "api", key, 2)[:4], [0, 5, 3, -1])
    assert_equal(client.info()["redis_mode"], "standalone")
    assert_equal(client.config_get("save"), {"save": ""})
    pipeline = client.pipeline(transaction=False)
    for _ in range(100):
        pipeline.execute_command("CL.THROTTLE", key + "-many", 49, 1, 864000)
    replies = pipeline.execute()
    assert_equal([reply[2] for reply in replies], [max(49 - index, 0) for index in range(100)])
    assert_equal([reply[0] for reply in replies], [0] * 50 + [1] * 50)
    transaction = client.pipeline()
    for _ in range(100):
        transaction.execute_command("CL.THROTTLE", key + "-multi", 49, 1, 864000)
    replies = transaction.execute()
    assert_equal([reply[0] for reply in replies], [0] * 50 + [1] * 50)
    transaction.execute_command("TG.CHECK", "api", key)
    transaction.get("a")
    try:
        transaction.execute()
        raise AssertionError("a transaction with GET was run")
    except redis.ResponseError as error:
        assert "unknown command 'GET'" in str(error), error
    assert_equal(client.execute_command("TG.CHECK", "api", key, 0)[2], 3)
    try:
        client.get("a")
        raise AssertionError("GET was answered")
    except redis.ResponseError as error:
        assert_equal(str(error), "unknown command 'GET', with args beginning with: 'a' ")
    client.close()

    try:
        redis.Redis(port=password_port, protocol=protocol).ping()
        raise AssertionError("a client without a password was answered")
    except redis.AuthenticationError:
        pass
    authenticated = redis.from_url(f"redis://:sesame@127.0.0.1:{password_port}/0?protocol={protocol}")
    assert_equal(authenticated.execute_command("TG.CHECK", "api", key)[0], 0)
    authenticated.close()


async def send_concurrently():
    client = redis.asyncio.Redis(port=port)
    calls = (client.execute_command("CL.THROTTLE", "py-async", 19, 1, 864000) for _ in range(40))
    replies = await asyncio.gather(*calls)
    assert_equal(sum(reply[0] for reply in replies), 20)
    await client.aclose()


asyncio.run(send_concurrently())
print("fine")
