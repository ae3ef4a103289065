// Asks the site's own search: its worker's script, in a context of its own.
// node site_search.js SITE TERM...; prints a JSON object: pages by term, the best first.
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const [site, ...terms] = process.argv.slice(2);
const folder = path.join(site, "assets/javascripts/workers");
const script = fs.readdirSync(folder).find((name) => /^search.*\.js$/.test(name));
let onMessage = null;
let onAnswer = null;
const scope = {
  console,
  addEventListener: (_, listener) => { onMessage = listener; },
  postMessage: (message) => onAnswer(message),
};
scope.self = scope;
vm.runInNewContext(fs.readFileSync(path.join(folder, script), "utf8"), scope);

const ask = (type, data) =>
  new Promise((resolve) => {
    onAnswer = resolve;
    onMessage({ data: { type, data } });
  });

(async () => {
  const index = JSON.parse(fs.readFileSync(path.join(site, "search/search_index.json"), "utf8"));
  await ask(0, { ...index, options: { suggest: false } });
  const found = {};
  for (const term of terms) {
    const answer = await ask(2, term);
    found[term] = answer.data.items.map((sections) => sections[0].location);
  }
  console.log(JSON.stringify(found));
})();
