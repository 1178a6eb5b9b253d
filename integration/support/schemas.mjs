// Checks Kubernetes objects by the schemas of the npm packages that `make test` installs.
//
// Reads a JSON array of objects from standard input, and prints each fault in a line. The packages have their schemas as
// compiled validators, which let unknown fields pass, such as misspelt ones. But a validator asks an object for every field of
// its schema. So the objects are watched while they are read: a field that nobody asks for is unknown.

import {readFileSync} from "node:fs";
import {resolve} from "node:path";
import {pathToFileURL} from "node:url";

const PACKAGES = {
  "networking.istio.io": "@kubernetes-models/istio",
  "gateway.envoyproxy.io": "@kubernetes-models/envoy-gateway",
  "gateway.networking.k8s.io": "@kubernetes-models/gateway-api",
  "": "kubernetes-models",
};

// The packages are made to be imported by name, but they are in a folder that is not ours.
const packages = resolve(process.argv[2], "node_modules");

async function modelOf({apiVersion, kind}) {
  const [version, group = ""] = apiVersion.split("/").reverse();
  const file = resolve(packages, PACKAGES[group], group, version, `${kind}.js`);
  return (await import(pathToFileURL(file)))[kind];
}

function problemsOf(model, data) {
  try {
    model.prototype.validate.call(data);
    return [];
  } catch (error) {
    return [error.message];
  }
}

// Returns a copy of the data, and notes in `asked` which fields each object in it is asked for.
function watched(data, path, asked) {
  if (data === null || typeof data !== "object") return data;
  const children = Array.isArray(data) ? [] : {};
  for (const [name, value] of Object.entries(data)) children[name] = watched(value, `${path}/${name}`, asked);
  if (Array.isArray(data)) return children;
  const names = new Set();
  asked.push({path, names, own: Object.keys(data)});
  return new Proxy(children, {
    get: (object, name) => (names.add(name), object[name]),
    has: (object, name) => (names.add(name), name in object),
    // A validator that walks over all names, as for labels, knows any name.
    ownKeys: object => (Reflect.ownKeys(object).forEach(name => names.add(name)), Reflect.ownKeys(object)),
  });
}

const objects = JSON.parse(readFileSync(0, "utf8"));
for (const object of objects) {
  const name = `${object.kind} ${object.metadata?.name ?? ""}`.trim();
  const asked = [];
  for (const problem of problemsOf(await modelOf(object), watched(object, "", asked))) console.log(`${name} ${problem}`);
  // An object that was asked for nothing at all may hold anything, such as Envoy's configuration in a patch.
  for (const {path, names, own} of asked.filter(({names}) => names.size > 0)) {
    for (const field of own.filter(field => !names.has(field))) console.log(`${name} ${path}/${field}: unknown field`);
  }
}
