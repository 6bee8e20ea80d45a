// SPDX-License-Identifier: Apache-2.0
// Functions that the readers of optimizer.params and scheduler.params share.
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

/// Reads `params` (null: not given) into a struct with describe(). Paths of problems are relative
/// to `params`.
template <class S>
S read_params(const json::Value& params, config::Problems& problems, config::Origins& origins) {
  json::Value source = params.is_null() ? json::Value::object() : params;
  source.place = params.place;
  S options;
  config::read(source, options, problems, origins);
  return options;
}

/// Returns the parameters without max_grad_norm, which belongs to another key that the problem
/// names.
json::Value without_max_grad_norm(const json::Value& params, config::Problems& problems);

/// Like read_params(), for an optimizer.
template <class S>
S read_rule_params(const json::Value& params,
                   config::Problems& problems,
                   config::Origins& origins) {
  return read_params<S>(without_max_grad_norm(params, problems), problems, origins);
}

/// Describes the parameters that Adam and its variants share.
void describe_moments(config::Fields& f, double& lr, std::vector<double>& betas, double& eps);

/// Constructor arguments of DeepSpeed and apex: a choice between equivalent implementations, and an
/// unsupported variant.
struct ConstructorOptions {
  bool set_grad_none = true, fp32_optimizer_states = true, amsgrad = false;

  void describe(config::Fields& f);
  void check(const json::Value& params, config::Problems& problems) const;
};

/// Returns whether the user wrote this key with a value other than null.
bool is_given(const json::Value& params, std::string_view key);
/// Returns the place of the parameter, or of all parameters if it is not given.
json::Place place_of(const json::Value& params, std::string_view key);
/// Unless there are two numbers in [0, 1), reports a problem at the place of `key` and replaces
/// them by `fallback`.
void check_betas(std::vector<double>& betas,
                 std::vector<double> fallback,
                 const json::Value& params,
                 config::Problems& problems,
                 std::string_view key = "betas");
/// If the value is 1 or more, reports a problem at the place of `key` and sets it to 0.
void check_below_one(double& share,
                     std::string_view key,
                     const json::Value& params,
                     config::Problems& problems);

/// Returns the entry of a registry; an Error says why there is none. `planned` names are known but
/// not built yet.
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
