/** Code in colours: comments, strings, numbers, keywords and what is called. Text in, elements out. */

import { make } from "./dom.js";

const CHARS_MAX = 100_000;

const words = (text) => new Set(text.split(" "));
const C_WORDS = "auto bool break case catch char class const continue default delete do double else enum extern false " +
  "final float for goto if inline int interface long namespace new null nullptr operator private protected public " +
  "return short signed sizeof static struct switch template this throw true try typedef typename union unsigned " +
  "using virtual void volatile while";
const KEYWORDS = {
  javascript: words("as async await break case catch class const continue debugger default delete do else enum export " +
    "extends false finally for from function get if implements import in instanceof interface let new null of private " +
    "protected public readonly return set static super switch this throw true try type typeof undefined var void while yield"),
  python: words("False None True and as assert async await break case class continue def del elif else except finally " +
    "for from global if import in is lambda match nonlocal not or pass raise return self try while with yield"),
  shell: words("case do done echo elif else esac export exit fi for function if in local return set then until while"),
  c: words(C_WORDS),
  java: words(`${C_WORDS} abstract boolean byte extends finally implements import instanceof package super synchronized ` +
    "throws var fun val when object override string foreach in is async await internal sealed record"),
  go: words("break case chan const continue default defer else fallthrough false for func go goto if import interface " +
    "map nil package range return select struct switch true type var int string bool byte error float64 int64 uint64"),
  rust: words("as async await break const continue crate dyn else enum extern false fn for if impl in let loop match " +
    "mod move mut pub ref return self Self static struct super trait true type unsafe use where while " +
    "bool char f32 f64 i32 i64 str u8 u32 u64 usize String Vec Option Result Some None Ok Err"),
  ruby: words("BEGIN END alias and begin break case class def do else elsif end ensure false for if in module next nil " +
    "not or redo rescue return self super then true unless until when while yield"),
  lua: words("and break do else elseif end false for function goto if in local nil not or repeat return then true until while"),
  sql: words("add all alter and as asc between by case create cross default delete desc distinct drop else end exists " +
    "false foreign from full group having if in index inner insert into is join key left like limit not null offset on " +
    "or order outer primary references right select set table then true union unique update values view when where with"),
  yaml: words("true false null yes no on off"),
  css: words("important media import supports keyframes from to and not only"),
};

// Each pattern takes time linear in the text: what may fail late is short.
const BLOCK = String.raw`\/\*[\s\S]*?(?:\*\/|$)`;
const SLASHES = String.raw`\/\/[^\n]*`;
const HASH = String.raw`(?<![^\s;{}()[\],])#[^\n]*`;
const DASHES = String.raw`--[^\n]*`;
const DOUBLE = String.raw`"(?:\\[\s\S]|[^"\\\n])*"?`;
const SINGLE = String.raw`'(?:\\[\s\S]|[^'\\\n])*'?`;
const CHAR = String.raw`'(?:\\[^\n]{1,10}?|[^'\\\n])'`; // not a lifetime
const BACKTICKS = "`(?:\\\\[\\s\\S]|[^`\\\\])*`?";
const TRIPLE = String.raw`"""[\s\S]*?(?:"""|$)|'''[\s\S]*?(?:'''|$)`;
const NUMBER = String.raw`\b(?:0[xX][\da-fA-F_]+|0[bB][01_]+|\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?)`;
const WORD = String.raw`(?<word>[A-Za-z_$][\w$]*)(?=(?<call>[ \t]*\()?)`;

/** Groups by their names. A `word` is a keyword, or called, or neither. */
function pattern(comments, strings, names = "", flags = "g") {
  const groups = [`(?<comment>${comments.join("|")})`, `(?<string>${strings.join("|")})`];
  if (names) groups.push(`(?<name>${names})`);
  return new RegExp([...groups, `(?<number>${NUMBER})`, WORD].join("|"), flags);
}

const SLASHED = [BLOCK, SLASHES];
const LANGUAGES = {
  javascript: pattern(SLASHED, [DOUBLE, SINGLE, BACKTICKS]),
  python: pattern([HASH], [TRIPLE, DOUBLE, SINGLE], String.raw`@[\w.]+`),
  shell: pattern([HASH], [DOUBLE, SINGLE], String.raw`\$\{?[\w@*#?]+\}?`),
  c: pattern(SLASHED, [DOUBLE, CHAR], String.raw`^[ \t]*#\w+`, "gm"),
  java: pattern(SLASHED, [TRIPLE, DOUBLE, CHAR], String.raw`@\w+`),
  go: pattern(SLASHED, [DOUBLE, CHAR, BACKTICKS]),
  rust: pattern(SLASHED, [DOUBLE, CHAR], String.raw`#!?\[[^\]\n]{0,200}\]|\b\w{1,60}!`),
  ruby: pattern([HASH], [DOUBLE, SINGLE], String.raw`[:@]\w+`),
  lua: pattern([DASHES], [DOUBLE, SINGLE]),
  sql: pattern([DASHES, BLOCK], [SINGLE, DOUBLE]),
  yaml: pattern([HASH], [DOUBLE, SINGLE], String.raw`[\w.-]{1,60}(?=[ \t]{0,20}[:=](?:\s|$))|^\[[^\]\n]{0,200}\]`, "gm"),
  css: pattern([BLOCK], [DOUBLE, SINGLE], String.raw`[\w-]{1,60}(?=:[ \t])|[#.]-?[A-Za-z][\w-]*`),
  json: new RegExp(`(?<string>${DOUBLE})(?=(?<key>\\s*:)?)|(?<number>-?${NUMBER})|(?<keyword>true|false|null)`, "g"),
  html: new RegExp(String.raw`(?<comment><!--[\s\S]*?(?:-->|$))|(?<keyword><\/?[\w:-]+|\/?>)|` +
    String.raw`(?<name>[\w:@-]{1,60}(?==))|(?<string>(?<==)(?:${DOUBLE}|${SINGLE}))`, "g"),
  diff: /(?<string>^\+[^\n]*)|(?<number>^-[^\n]*)|(?<name>^@@[^\n]*)/gm,
};
const ALIASES = {
  js: "javascript", jsx: "javascript", mjs: "javascript", ts: "javascript", tsx: "javascript", typescript: "javascript",
  py: "python", python3: "python", sh: "shell", bash: "shell", zsh: "shell", console: "shell", dockerfile: "shell",
  makefile: "shell", cpp: "c", "c++": "c", h: "c", hpp: "c", cuda: "c", kotlin: "java", csharp: "java", cs: "java",
  scala: "java", swift: "java", php: "java", dart: "java", golang: "go", rs: "rust", rb: "ruby", yml: "yaml",
  toml: "yaml", ini: "yaml", jsonc: "json", jsonl: "json", scss: "css", xml: "html", svg: "html", vue: "html",
  patch: "diff", postgresql: "sql", mysql: "sql", sqlite: "sql",
};

/** @returns {Node[] | null} null: the language is not known, or the text is long. */
export function highlighted(text, language) {
  const asked = language.toLowerCase();
  const known = Object.hasOwn(ALIASES, asked) ? ALIASES[asked] : asked;
  if (!Object.hasOwn(LANGUAGES, known) || text.length > CHARS_MAX) return null;
  const nodes = [];
  let end = 0;
  for (const match of text.matchAll(LANGUAGES[known])) {
    const kind = kindOf(match.groups, KEYWORDS[known], known === "sql");
    if (kind === null) continue;
    if (match.index > end) nodes.push(text.slice(end, match.index));
    nodes.push(make("span", { className: `hl-${kind}`, textContent: match[0] }));
    end = match.index + match[0].length;
  }
  if (end < text.length) nodes.push(text.slice(end));
  return nodes;
}

function kindOf(groups, keywords, isCaseless) {
  const { word, call, key } = groups;
  if (word !== undefined) {
    if (keywords.has(isCaseless ? word.toLowerCase() : word)) return "keyword";
    return call === undefined ? null : "name";
  }
  if (key !== undefined) return "name";
  return ["comment", "string", "number", "name", "keyword"].find((kind) => groups[kind] !== undefined) ?? null;
}
