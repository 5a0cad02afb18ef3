// ioredis against the RESP listener: node ioredis.js PORT PORT_WITH_PASSWORD
const assert = require("node:assert");
const { Redis } = require("ioredis");

const [port, guarded] = process.argv.slice(2).map(Number);

async function main() {
  const client = new Redis(port, "127.0.0.1", { connectionName: "app" });
  assert.strictEqual(await client.ping(), "PONG");
  assert.strictEqual(await client.client("GETNAME"), "app");
  const first = await client.call("CL.THROTTLE", "js", 15, 30, 60);
  assert.deepStrictEqual(first, [0, 16, 15, -1, 2]);
  const checked = await client.call("TG.CHECK", "api", "js", 2);
  assert.deepStrictEqual(checked.slice(0, 4), [0, 5, 3, -1]);
  const pipeline = client.pipeline();
  for (let place = 0; place < 100; place++) {
    pipeline.call("CL.THROTTLE", "js-many", 49, 1, 864000);
  }
  const answers = await pipeline.exec();
  answers.forEach(([error, answer], place) => {
    assert.strictEqual(error, null);
    assert.deepStrictEqual(answer.slice(0, 3), [place < 50 ? 0 : 1, 50, Math.max(49 - place, 0)]);
  });
  await assert.rejects(client.get("a"), /unknown command 'GET'|unknown command 'get'/);
  await client.quit();

  const stranger = new Redis(guarded, "127.0.0.1", { lazyConnect: true, retryStrategy: null });
  stranger.on("error", () => {});
  await assert.rejects(stranger.call("CL.THROTTLE", "js", 15, 30, 60));
  stranger.disconnect();
  const known = new Redis(guarded, "127.0.0.1", { password: "sesame" });
  assert.strictEqual((await known.call("TG.CHECK", "api", "js"))[0], 0);
  await known.quit();
  console.log("fine");
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
