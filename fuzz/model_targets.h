// SPDX-License-Identifier: Apache-2.0
// Readers of model descriptions. They need libtorch, which the fuzzer's build does not include, so
// only tests/cli/corpus_test.cpp replays their corpus and mutates it at random.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "fuzz/targets.h"

#include "tessera/models/family.h"

namespace tessera::fuzz {

/// Reads a description as models::open_model_source does, and the model's shape from it.
inline void read_config(const fs::path& path) {
  const json::Value hf = json::parse_strict(files::read(path), path.string());
  const models::ModelOptions options = models::options_from_hf(hf);
  config::Problems problems;
  const auto resolved = models::resolve(
      options, options->vocab_size.value_or(256), std::nullopt, problems, config::Origins());
  problems.raise();
}

inline const std::map<std::string, Target>& model_targets() {
  static const std::map<std::string, Target> all = {
      {"hf-config",
       {"config.json", [](const fs::path& f) { read_config(f / "config.json"); }, ""}}};
  return all;
}

}  // namespace tessera::fuzz
