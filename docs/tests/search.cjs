// Run the theme's own search worker: `node search.cjs WORKER INDEX`, with queries as JSON on stdin.
// For each query it prints the pages that the search box lists, best first, each with its best place.

const fs = require("node:fs");
const vm = require("node:vm");

const [worker, index] = process.argv.slice(2).map((file) => fs.readFileSync(file, "utf-8"));
const queries = JSON.parse(fs.readFileSync(0, "utf-8"));
const SETUP = 0;
const READY = 1;
const QUERY = 2;

let receive;
const found = [];
const scope = {
  console: { warn: (text) => process.stderr.write(`${text}\n`) },
  addEventListener: (_, listener) => {
    receive = listener;
  },
  postMessage: ({ type, data }) => {
    if (type !== READY) {
      found.push(data.items.map((sections) => sections[0].location));
    }
  },
};
scope.self = scope;
vm.runInNewContext(worker, scope);

async function main() {
  const { config, docs } = JSON.parse(index);
  await receive({ data: { type: SETUP, data: { config, docs, options: { suggest: false } } } });
  for (const query of queries) {
    await receive({ data: { type: QUERY, data: query } });
  }
  process.stdout.write(JSON.stringify(found));
}

main();
