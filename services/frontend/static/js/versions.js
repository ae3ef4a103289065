/**
 * Versions of an answer.
 *
 * The shown one is in the chat. Its `versions` has a place for each, null for itself, and for the
 * others the messages from that version on: to switch changes the rest of the chat, too.
 */

const VERSIONS_MAX = 20;

/** Which of how many is shown, from 0. */
export function versionOf({ versions }) {
  return versions ? { at: versions.indexOf(null), num: versions.length } : { at: 0, num: 1 };
}

/**
 * Take the answer at `at` and what follows it out of the chat, to make way for another version.
 *
 * @returns {object} fields of the answer that takes its place.
 */
export function setAside(messages, at) {
  const removed = messages.splice(at);
  if (removed.length === 0) return {};
  const [answer] = removed;
  const versions = answer.versions ?? [null];
  delete answer.versions;
  if (answer.state === "done" || answer.state === "stopped" || answer.content) {
    versions[versions.indexOf(null)] = removed;
    versions.push(null);
  }
  if (versions.length > VERSIONS_MAX) versions.shift();
  return versions.length > 1 ? { versions } : {};
}

/** Show version `to` of the answer at `at`. */
export function switchVersion(messages, at, to) {
  const { versions } = messages[at];
  if (!versions?.[to]) return;
  const shown = messages.splice(at);
  delete shown[0].versions;
  versions[versions.indexOf(null)] = shown;
  const [answer, ...rest] = versions[to];
  versions[to] = null;
  messages.push({ ...answer, versions }, ...rest);
}
