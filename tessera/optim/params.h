// SPDX-License-Identifier: Apache-2.0
// What the readers of optimizer.params and scheduler.params share.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/registry.h"
#include "tessera/base/text.h"
#include "tessera/config/fields.h"
#include "tessera/config/json.h"

namespace tessera::optim {

/// Reads `params` (null: none given) into a struct with describe(). Paths of problems are relative
/// to `params`.
template <class S>
S read_params(const json::Value& params, config::Problems& problems, config::Origins& origins) {
  json::Value source = params.is_null() ? json::Value::object() : params;
  source.place = params.place;
  S options;
  config::read(source, options, problems, origins);
  return options;
}

/// The parameters without what belongs to another key: max_grad_norm, whose problem names that key.
json::Value without_max_grad_norm(const json::Value& params, config::Problems& problems);

/// read_params() of an optimizer.
template <class S>
S read_rule_params(const json::Value& params,
                   config::Problems& problems,
                   config::Origins& origins) {
  return read_params<S>(without_max_grad_norm(params, problems), problems, origins);
}

/// Arguments of DeepSpeed's and apex's constructors: which of two ways to do the same, and a
/// variant that neither builds.
struct ConstructorWords {
  bool set_grad_none = true, fp32_optimizer_states = true, amsgrad = false;

  void describe(config::Fields& f);
  void check(const json::Value& params, config::Problems& problems) const;
};

/// The user wrote this key, and not as null.
bool is_given(const json::Value& params, std::string_view key);
/// Where the parameter stands, or all of them where it is not given.
json::Place place_of(const json::Value& params, std::string_view key);
/// Not two numbers in [0, 1): a problem at the place of `key`, and `fallback` in their stead.
void check_betas(std::vector<double>& betas,
                 std::vector<double> fallback,
                 const json::Value& params,
                 config::Problems& problems,
                 std::string_view key = "betas");
/// 1 or more: a problem at the place of `key`, and 0 in its stead.
void check_below_one(double& share,
                     std::string_view key,
                     const json::Value& params,
                     config::Problems& problems);

/// The entry of a registry, or why there is none: `planned` names are known but not built yet.
template <class T>
const T& find(const Registry<T>& registry,
              std::string_view kind,
              std::string_view name,
              std::span<const std::string> planned) {
  if (registry.has(name)) return registry.get(name);
  for (const std::string& known : planned) {
    TESSERA_REQUIRE(text::lower(known) != text::lower(name),
                    Unsupported,
                    std::string(kind) + " \"" + known + "\" is not built yet",
                    "choose one of: " + text::join(registry.names(), ", "));
  }
  return registry.get(name);
}

}  // namespace tessera::optim
