// ioredis against the RESP listener: node ioredis.js PORT PORT_WITH_PASSWORD
const assert = require("node:assert");
const { Redis } = require("ioredis");

const [port, passwordPort] = process.argv.slice(2).map(Number);

async function main() {
  const client = new Redis(port, "127.0.0.1", { connectionName: "app" });
  assert.strictEqual(await client.ping(), "PONG");
  assert.strictEqual(await client.client("GETNAME"), "app");
  const first = await client.call("CL.THROTTLE", "js", 15, 30, 60);
  assert.deepStrictEqual(first, [0, 16, 15, -1, 2]);
  const checked = await client.call("TG.CHECK", "api", "js", 2);
  assert.deepStrictEqual(checked.slice(0, 4), [0, 5, 3, -1]);
  const pipeline = client.pipeline();
  for (let index = 0; index < 100; index++) {
    pipeline.call("CL.THROTTLE", "js-many", 49, 1, 864000);
  }
  const replies = await pipeline.exec();
  replies.forEach(([error, reply], index) => {
    assert.strictEqual(error, null);
    assert.deepStrictEqual(reply.slice(0, 3), [index < 50 ? 0 : 1, 50, Math.max(49 - index, 0)]);
  });
  const transaction = client.multi();
  for (let index = 0; index < 100; index++) {
    transaction.call("CL.THROTTLE", "js-multi", 49, 1, 864000);
  }
  const executed = await transaction.exec();
  assert.deepStrictEqual(executed.map(([, reply]) => reply[0]), [...Array(50).fill(0), ...Array(50).fill(1)]);
  await assert.rejects(client.multi().call("TG.CHECK", "api", "js").get("a").exec(), /EXECABORT/);
  assert.strictEqual((await client.call("TG.CHECK", "api", "js", 0))[2], 3);
  await assert.rejects(client.get("a"), /unknown command 'GET'|unknown command 'get'/);
  await client.quit();

  const options = { lazyConnect: true, retryStrategy: null };
  const unauthenticated = new Redis(passwordPort, "127.0.0.1", options);
  unauthenticated.on("error", () => {});
  await assert.rejects(unauthenticated.call("CL.THROTTLE", "js", 15, 30, 60));
  unauthenticated.disconnect();
  const authenticated = new Redis(passwordPort, "127.0.0.1", { password: "sesame" });
  assert.strictEqual((await authenticated.call("TG.CHECK", "api", "js"))[0], 0);
  await authenticated.quit();
  console.log("fine");
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
