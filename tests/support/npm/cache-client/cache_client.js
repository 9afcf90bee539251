// The official client, one call a process: `save KEY PATH`, `restore PATH KEY [RESTORE_KEY...]`.
// Prints one line of JSON: what the client returned, or the words of the error that it raised.
import * as cache from "@actions/cache";

const [verb, ...rest] = process.argv.slice(2);
const answer = async () => {
  if (verb === "save") {
    const [key, path] = rest;
    return { saved: await cache.saveCache([path], key) };
  }
  const [path, key, ...restoreKeys] = rest;
  return { restored: (await cache.restoreCache([path], key, restoreKeys)) ?? null };
};

answer()
  .catch((error) => ({ error: `${error.name}: ${error.message}` }))
  .then((told) => console.log(`\n${JSON.stringify(told)}`));
