// An HTTP server on node's event loop: serves the files of a directory.
//   node server.js DIRECTORY ADDRESS PORT
const http = require('http');
const fs = require('fs');
const path = require('path');
const [directory, address, port] = process.argv.slice(2);

const server = http.createServer((request, response) => {
  const file = path.join(directory, path.basename(request.url));
  fs.stat(file, (error, stats) => {
    if (error) {
      response.writeHead(404).end();
      return;
    }
    response.writeHead(200, { 'Content-Length': stats.size });
    fs.createReadStream(file).pipe(response);
  });
});
server.listen(Number(port), address);
process.on('SIGTERM', () => process.exit(0));
