// An HTTP server of four processes (node's cluster): each answers with the files of a directory, and with its number.
//   node cluster.js DIRECTORY ADDRESS PORT rr|none
// `rr`: the first process accepts and passes connections on; `none`: all have its listener.
const cluster = require('cluster');
const fs = require('fs');
const http = require('http');
const path = require('path');
const [directory, address, port, policy] = process.argv.slice(2);

if (cluster.isPrimary) {
  cluster.schedulingPolicy = policy === 'rr' ? cluster.SCHED_RR : cluster.SCHED_NONE;
  for (let i = 0; i < 4; i++) cluster.fork();
  let listening = 0;
  cluster.on('listening', () => console.log(`${++listening} listen`));
  cluster.on('exit', () => cluster.fork());
  process.on('SIGTERM', () => {
    cluster.removeAllListeners('exit');
    cluster.disconnect(() => process.exit(0));
  });
} else {
  const server = http.createServer((request, response) => {
    if (request.url === '/who') {
      response.end(`${cluster.worker.id}`);
    } else if (request.url === '/die') {
      response.end('so it is', () => process.exit(1));
    } else {
      const body = fs.readFileSync(path.join(directory, path.basename(request.url)));
      response.writeHead(200, { 'Content-Length': body.length, Connection: 'close' });
      response.end(body);
    }
  });
  server.listen(Number(port), address);
  process.on('SIGTERM', () => {});
}
