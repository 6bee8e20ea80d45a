// SPDX-License-Identifier: Apache-2.0
// `--set a.b=V`, and flags that set a key.
#pragma once

#include <string>
#include <string_view>

#include "tessera/config/json.h"

namespace tessera::config {

/// Sets the key `path` of `source` to `value` and creates the enclosing objects. `optimizer.lr` and
/// `scheduler.X` mean `optimizer.params.lr` and `scheduler.params.X`; `origin` is what the user
/// typed and serves as the place in messages. Throws Error{Config} if an enclosing value is not an
/// object, or the path has an empty step.
void set_key(json::Value& source,
             std::string_view path,
             json::Value value,
             const std::string& origin);
/// The same for a value from `place` in a file.
void set_key(json::Value& source,
             std::string_view path,
             json::Value value,
             const json::Place& place);

/// `assignment` is "a.b=V"; V is parsed as JSON, or taken as a string if it is not JSON. Throws
/// Error{Config} without "=".
void apply_override(json::Value& source, std::string_view assignment);

/// Removes the keys that only evaluations use, so that none of them is refused where there are
/// none: the section eval, and checkpoint.best.
void drop_evaluation(json::Value& source);

}  // namespace tessera::config
