// Sends bodies that are refused, one after the other over an agent that keeps connections, with a small request behind each, and
// prints how often which status was seen: node refused.js URL SIZE TIMES chunked|length
'use strict';
const http = require('http');

const [url, size, times, framing] = process.argv.slice(2);
const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
const body = Buffer.alloc(Number(size), 'x');

function send(method, path, body) {
  return new Promise((resolve) => {
    const headers = { 'Content-Type': 'application/json' };
    if (body && framing === 'length') headers['Content-Length'] = body.length;
    const req = http.request(url + path, { method, agent, headers }, (res) => {
      res.resume();
      res.on('end', () => resolve(res.statusCode));
      res.on('error', (err) => resolve(err.code));
    });
    req.on('error', (err) => resolve(err.code));
    for (let i = 0; body && i < body.length; i += 65536) req.write(body.subarray(i, i + 65536));
    req.end();
  });
}

(async () => {
  const seen = {};
  for (let i = 0; i < Number(times); i++) {
    for (const status of [await send('POST', '', body), await send('GET', '', null)]) seen[status] = (seen[status] || 0) + 1;
  }
  console.log(JSON.stringify(seen));
  agent.destroy();
})();
