// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/deepspeed/keys_page.h"

#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/interop/deepspeed/keys.h"

namespace tessera::interop {
namespace {

constexpr const char* kDeepSpeedHead =
    "\n| key | default | treatment | reason |\n|---|---|---|---|\n";

std::string code(std::string_view text) {
  return text.empty() ? "" : fmt::format("`{}`", text);
}

const config::KeyDoc* find_doc(const std::vector<config::KeyDoc>& keys, std::string_view path) {
  for (const config::KeyDoc& key : keys) {
    if (key.path == path) return &key;
  }
  return nullptr;
}

// Compares defaults as numbers or words: 5e8 equals 500000000, "AdamW" equals AdamW.
bool same_default(std::string_view theirs, const std::string& ours) {
  if (theirs.empty() || theirs == ours) return true;
  try {
    const json::Value one = json::parse(theirs, ""), other = json::parse(ours, "");
    return one == other;
  } catch (const Error&) {
    return false;
  }
}

std::string defaults_of(const DeepSpeedKey& key, const config::KeyDoc* doc) {
  const std::string theirs(key.initial);
  if (key.policy != KeyPolicy::Done || doc == nullptr || same_default(theirs, doc->initial))
    return code(theirs);
  return fmt::format("{}; here {}", code(theirs), doc->initial);
}

std::string off_values(const DeepSpeedKey& key) {
  std::vector<std::string> values;
  const json::Value off = json::parse(key.off, std::string(key.path));
  for (const json::Value& value : off.items())
    values.push_back(code(value.dump()));
  return text::join(values, ", ");
}

// Returns the treatment of the key and its reason.
std::pair<std::string, std::string> outcome(const DeepSpeedKey& key, const config::KeyDoc* doc) {
  switch (key.policy) {
    case KeyPolicy::Done:
      return {"done", doc == nullptr ? "" : doc->text};
    case KeyPolicy::Inside:
      return {"checked; part of its block", ""};
    case KeyPolicy::Accepted:
      return {"accepted with a note", std::string(key.about)};
    case KeyPolicy::Alias:
      return {"another name of " + code(key.about), ""};
    case KeyPolicy::Later:
    case KeyPolicy::Never: {
      const std::string off = off_values(key);
      std::string why = fmt::format("{}; instead: {}", key.about, key.fix);
      if (!key.moot.empty()) why += fmt::format("; if it is accepted: {}", key.moot);
      const std::string when = off.empty() ? "rejected" : "rejected unless the value is " + off;
      return {when + (key.policy == KeyPolicy::Later ? "; not built yet" : ""), why};
    }
    case KeyPolicy::Section:
      break;
  }
  return {};
}

}  // namespace

std::string deepspeed_markdown(const std::vector<config::KeyDoc>& keys) {
  std::string theirs, others;
  for (const DeepSpeedKey& key : deepspeed_keys()) {
    if (key.policy == KeyPolicy::Section) continue;
    const config::KeyDoc* doc = find_doc(keys, key.path);
    const auto [what, why] = outcome(key, doc);
    (is_colossalai_key(key.path) ? others : theirs) +=
        fmt::format("| `{}` | {} | {} | {} |\n",
                    key.path,
                    config::markdown_cell(defaults_of(key, doc)),
                    config::markdown_cell(what),
                    config::markdown_cell(why));
  }
  return fmt::format("{}{}\n## Keys of Colossal-AI that are also known\n{}{}",
                     kDeepSpeedHead,
                     theirs,
                     kDeepSpeedHead,
                     others);
}

std::string explain_deepspeed_key(const DeepSpeedKey& key) {
  if (key.policy == KeyPolicy::Section) return "";
  const auto [what, why] = outcome(key, nullptr);
  std::string out = fmt::format("{}: a key of {}; {}",
                                key.path,
                                is_colossalai_key(key.path) ? "Colossal-AI" : "DeepSpeed",
                                what);
  if (!why.empty()) out += ": " + why;
  if (!key.initial.empty()) out += fmt::format(" [{}]", key.initial);
  return out + "\n";
}

}  // namespace tessera::interop
