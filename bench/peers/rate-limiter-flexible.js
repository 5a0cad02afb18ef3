// An HTTP server that limits each `user` of the query by rate-limiter-flexible: status 200 or 429.
//
// Usage: node rate-limiter-flexible.js PORT POINTS SECONDS [REDIS_PORT]
// Without the port of a Redis it counts in memory. NODE_PATH names the folder of the packages.
const http = require('http');
const { RateLimiterMemory, RateLimiterRedis } = require('rate-limiter-flexible');

const [port, points, duration, redisPort] = process.argv.slice(2).map(Number);
const limit = { points, duration };
const limiter = redisPort
  ? new RateLimiterRedis({ ...limit, storeClient: new (require('ioredis'))(redisPort, '127.0.0.1') })
  : new RateLimiterMemory(limit);

const server = http.createServer((request, response) => {
  const user = request.url.slice(request.url.indexOf('=') + 1);
  limiter.consume(user).then(
    () => response.end('{"allowed":true}'),
    (reason) => {
      // A rejection is an error of the store, or the state of the limit.
      response.statusCode = reason instanceof Error ? 500 : 429;
      response.end('{"allowed":false}');
    },
  );
});
server.listen(port, '127.0.0.1');
