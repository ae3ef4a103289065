/** Numbers with their units. */

const number = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const small = new Intl.NumberFormat("en", { maximumSignificantDigits: 2 });
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];
const HEX_ID = /[0-9a-f]{12,}$/;

export const count = (value) => number.format(value);

export function perSecond(value) {
  const format = value < 1 ? small : value < 10_000 ? number : compact;
  return `${format.format(value)}/s`;
}

export const percent = (share) => `${number.format(100 * share)}%`;

export function bytes(value) {
  const power = value > 0 ? Math.min(Math.floor(Math.log2(value) / 10), UNITS.length - 1) : 0;
  return `${number.format(value / 2 ** (10 * power))} ${UNITS[power]}`;
}

export function milliseconds(value) {
  if (value === null || value === undefined) return "–";
  return value < 1_000 ? `${number.format(value)} ms` : `${number.format(value / 1_000)} s`;
}

/** A name without what only machines read: `fe-0-041fbce9ee85…` is `fe-0-041f`. */
export function shortName(name) {
  return name.replace(HEX_ID, (digits) => digits.slice(0, 4));
}

/** A worker's name on its host: `w0` of `box-1-w0`. */
export function nameOnHost(workerId, hostId) {
  const prefix = `${hostId}-`;
  return shortName(workerId.startsWith(prefix) ? workerId.slice(prefix.length) : workerId);
}
