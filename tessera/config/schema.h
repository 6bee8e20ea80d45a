// SPDX-License-Identifier: Apache-2.0
// JSON Schema of the options, generated from the same describe() that reads them. An editor that
// knows it completes keys, shows their documentation, and marks what is misspelt or out of range.
#pragma once

#include "tessera/config/fields.h"
#include "tessera/config/json.h"

namespace tessera::config {

namespace detail {
json::Value schema_of_fields(void (*describe)(void*, Fields&), void* options);
}

/// Returns the schema of an object with these options (JSON Schema 2020-12), without `$schema`;
/// `options` holds the defaults. Every key may be null, which means "not given"; unknown keys are
/// not allowed, required ones are not demanded, because other files or the command line may set
/// them.
template <class S>
json::Value schema(S options) {
  return detail::schema_of_fields([](void* s, Fields& f) { static_cast<S*>(s)->describe(f); },
                                  &options);
}

/// Returns the schema of values of a type in the words of the documentation: "integer",
/// "true or false", "list of strings", "integer or \"auto\"". An empty schema, which allows
/// anything, stands for words that it does not know.
json::Value schema_of_type(std::string_view words);

/// Lets the schema allow `other` too; one without `type` and `anyOf` allows anything already.
void allow_also(json::Value& schema, json::Value other);

}  // namespace tessera::config
