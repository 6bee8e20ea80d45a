// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/agreement.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/content_hash.h"
#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/planner/course.h"
#include "tessera/planner/data_plan.h"
#include "tessera/planner/plan.h"

namespace tessera::engine {
namespace {

namespace fs = std::filesystem;
using hosts::Fact;

/// Longer values are compared and shown as their hash.
constexpr std::size_t kShown = 80;
/// Most bytes of all facts: a message between hosts has at most 1 MiB.
constexpr std::size_t kMostBytes = std::size_t{900} << 10;

std::string hash_of(std::string_view text) {
  return files::hex64(files::xxh3(std::as_bytes(std::span(text))));
}

/// Calls fn(path, value) for every value of an object that is not an object itself.
void for_each_key(const json::Value& object,
                  const std::string& path,
                  const std::function<void(const std::string&, const json::Value&)>& fn) {
  for (const auto& [key, value] : object.members()) {
    const std::string inner = path.empty() ? key : path + "." + key;
    if (value.is_object() && !value.members().empty()) {
      for_each_key(value, inner, fn);
    } else {
      fn(inner, value);
    }
  }
}

/// Keys that may differ between hosts: a launcher may give its ranks other numbers of cores.
bool may_differ(std::string_view path) {
  return path == "run.threads_per_rank" || path.starts_with("run.derived");
}

/// Sections whose strings name files that are read. The data has fingerprints, and other sections
/// name what is written.
bool names_inputs(std::string_view path) {
  constexpr std::array<std::string_view, 8> kSections = {"model.",

                                                         "task.",
                                                         "rl.",
                                                         "adapter.",
                                                         "distill.",
                                                         "eval.",
                                                         "optimizer.",
                                                         "data."};
  constexpr std::array<std::string_view, 4> kFingerprinted = {
      "data.train", "data.validation", "data.test", "data.sources"};
  const auto begins = [&](std::string_view section) { return path.starts_with(section); };
  return std::ranges::any_of(kSections, begins) && !std::ranges::any_of(kFingerprinted, begins);
}

void for_each_string(const json::Value& value, const std::function<void(const std::string&)>& fn) {
  if (value.is_string()) fn(value.as_string());
  if (!value.is_array()) return;
  for (const json::Value& item : value.items())
    for_each_string(item, fn);
}

/// Returns the key whose value is `text`, or `otherwise`.
std::string key_of(const json::Value& config, const std::string& text, std::string otherwise) {
  std::string found;
  for_each_key(config, "", [&](const std::string& path, const json::Value& value) {
    if (found.empty() && value.is_string() && value.as_string() == text) found = path;
  });
  return found.empty() ? std::move(otherwise) : found;
}

std::string shown(std::string text) {
  return text.size() <= kShown ? std::move(text) : hash_of(text);
}

/// The text of a value of the configuration; numbers that are equal have the same text, however
/// they were written.
std::string text_of(const json::Value& value) {
  if (!value.is_number()) return shown(value.dump());
  const std::optional<std::int64_t> whole = value.as_integer();
  return whole ? fmt::format("{}", *whole) : fmt::format("{}", value.as_double());
}

void add_set(std::vector<Fact>& out,
             const std::string& key,
             const std::vector<std::string>& names,
             const data::Dataset* set,
             const std::string& fingerprint) {
  if (set == nullptr) return;
  out.push_back({Fact::Kind::Samples,
                 key,
                 names.empty() ? "the data" : text::join_some(names, ", "),
                 fmt::format("{} samples {}", set->size(), fingerprint)});
}

}  // namespace

std::vector<Fact> known_facts(const planner::PlanWithData& plan,
                              const data::Datasets& data,
                              const ResumePoint& resume) {
  std::vector<Fact> out;
  for_each_key(plan.resolved(), "", [&](const std::string& path, const json::Value& value) {
    if (!may_differ(path)) out.push_back({Fact::Kind::Setting, path, "", text_of(value)});
  });
  if (plan.data().tokenizer != nullptr) {
    const std::string& vocab = plan.data().tokenizer_options.vocab;
    out.push_back({Fact::Kind::Contents,
                   hosts::kTokenizer,
                   vocab.empty() ? plan.data().tokenizer->name() : vocab,
                   plan.data().tokenizer->fingerprint()});
  }
  const data::DataOptions& options = plan.data().options;
  // With data.sources they are the files of all sources.
  add_set(out,
          options.sources.is_null() ? "data.train" : "data.sources",
          options.train,
          data.train.get(),
          data.fingerprint);
  add_set(out,
          "data.validation",
          options.validation,
          options.validation.empty() ? nullptr : data.validation.get(),
          data.validation_fingerprint);
  add_set(out, "data.test", options.test, data.test.get(), data.test_fingerprint);
  out.push_back(
      {Fact::Kind::Derived, "the number of steps", "", fmt::format("{}", plan.course().max_steps)});
  out.push_back({Fact::Kind::Progress,
                 "the newest checkpoint",
                 "",
                 resume.exists() ? fmt::format("step {}", resume.position.step) : "none"});
  return out;
}

std::vector<Fact> contents_facts(const planner::Plan& plan,
                                 const data::Datasets& data,
                                 const std::function<void()>& alive) {
  std::vector<Fact> out;
  std::set<std::pair<std::string, std::string>> known;
  const auto add = [&](const std::string& what, const fs::path& file) {
    if (!known.emplace(what, file.string()).second) return;
    const std::uint64_t hash = files::content_hash(std::span(&file, 1), alive);
    out.push_back({Fact::Kind::Contents, what, file.string(), files::hex64(hash)});
  };
  for (const Input& input : plan.inputs()) {
    const std::string what = key_of(plan.resolved(), input.where, input.what);
    for (const fs::path& file : input.files)
      add(what, file);
  }
  for_each_key(plan.resolved(), "", [&](const std::string& path, const json::Value& value) {
    if (!names_inputs(path)) return;
    for_each_string(value, [&](const std::string& text) {
      // A word such as "text" may by accident be the name of a file.
      const bool is_path = text.find_first_of("./") != std::string::npos;
      std::error_code unknown;
      if (is_path && fs::is_regular_file(text, unknown)) add(path, text);
    });
  });
  for (const auto& [key, set] : {std::pair{"data.train", data.train.get()},
                                 std::pair{"data.validation", data.validation.get()},
                                 std::pair{"data.test", data.test.get()}}) {
    if (set == nullptr) continue;
    const std::vector<fs::path> files = set->files();
    if (files.empty()) continue;
    out.push_back({Fact::Kind::Contents,
                   key,
                   fmt::format("{} files, from {} on", files.size(), files.front().string()),
                   files::hex64(files::content_hash(files, alive))});
  }
  return out;
}

std::vector<Fact> facts_of(const planner::PlanWithData& plan,
                           const data::Datasets& data,
                           const ResumePoint& resume,
                           const std::function<void()>& alive) {
  std::vector<Fact> out = known_facts(plan, data, resume);
  for (Fact& fact : contents_facts(plan, data, alive))
    out.push_back(std::move(fact));
  std::size_t bytes = 0, kept = 0;
  for (; kept < out.size(); ++kept) {
    bytes += out[kept].what.size() + out[kept].where.size() + out[kept].value.size() + 16;
    if (bytes > kMostBytes) break;
  }
  if (kept == out.size()) return out;
  std::string rest;
  for (std::size_t i = kept; i < out.size(); ++i)
    rest += fmt::format("{}|{}|{}|", out[i].what, out[i].where, out[i].value);
  out.resize(kept);
  out.push_back({Fact::Kind::Contents, "further files", "what the run reads", hash_of(rest)});
  return out;
}

}  // namespace tessera::engine
