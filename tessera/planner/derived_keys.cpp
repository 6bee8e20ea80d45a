// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/derived_keys.h"

#include <cstdint>
#include <string_view>

#include <fmt/format.h>

#include "tessera/base/text.h"

namespace tessera::planner {
namespace {

constexpr const char* kGlobal = "train_batch_size";
constexpr const char* kMicro = "train_micro_batch_size_per_gpu";
constexpr const char* kAccumulation = "gradient_accumulation_steps";
constexpr const char* kStage = "zero_optimization.stage";
constexpr const char* kThreads = "run.threads_per_rank";

// The value at a path like "run.dir"; nullptr if there is none.
const json::Value* find_path(const json::Value& source, std::string_view path) {
  const json::Value* at = &source;
  for (const std::string& key : text::split(path, '.')) {
    at = at->is_object() ? at->find(key) : nullptr;
    if (at == nullptr) return nullptr;
  }
  return at;
}

// Removes the value at a path, and an enclosing object that becomes empty, because an empty block
// has another meaning than an absent one.
void erase_path(json::Value& source, std::string_view path) {
  const std::size_t dot = path.find('.');
  const std::string_view key = path.substr(0, dot);
  if (dot != std::string_view::npos) {
    json::Value& inner = *source.find(key);
    erase_path(inner, path.substr(dot + 1));
    if (!inner.members().empty()) return;
  }
  std::erase_if(source.members(), [&](const auto& member) { return member.first == key; });
}

bool still_divides(const json::Value& source, int ranks) {
  const json::Value *const global = source.find(kGlobal), *const micro = source.find(kMicro);
  if (global == nullptr || micro == nullptr || !global->is_number() || !micro->is_number())
    return true;
  const std::int64_t step = micro->as_integer().value_or(0) * ranks;
  return step <= 0 || global->as_integer().value_or(0) % step == 0;
}

}  // namespace

json::Value DerivedKeys::take(json::Value source, int ranks) {
  const json::Value* const found = find_path(source, "run.derived");
  if (found == nullptr || !found->is_array()) return source;
  const json::Value names = *found;
  for (const json::Value& name : names.items()) {
    const json::Value* const value =
        name.is_string() ? find_path(source, name.as_string()) : nullptr;
    if (value == nullptr || value->place.source != names.place.source) continue;
    if (name.as_string() == kMicro && still_divides(source, ranks)) {
      micro_was_derived_ = true;
      continue;
    }
    before_.emplace_back(name.as_string(), *value);
    erase_path(source, name.as_string());
  }
  return source;
}

std::vector<std::string> DerivedKeys::names(const config::Origins& origins) const {
  std::vector<std::string> out = {kAccumulation};
  if (!origins.given(kMicro) || micro_was_derived_) out.emplace_back(kMicro);
  if (!origins.given("zero_optimization")) out.emplace_back(kStage);
  if (!origins.given(kThreads)) out.emplace_back(kThreads);
  return out;
}

std::vector<std::string> DerivedKeys::notes(const json::Value& resolved, int ranks) const {
  std::vector<std::string> out;
  for (const auto& [name, before] : before_) {
    const json::Value* const now = find_path(resolved, name);
    if (now == nullptr || *now == before) continue;
    out.push_back(fmt::format("{} was {} and is {} with {} {} (run.derived)",
                              name,
                              before.dump(),
                              now->dump(),
                              ranks,
                              ranks == 1 ? "rank" : "ranks"));
  }
  return out;
}

}  // namespace tessera::planner
