// SPDX-License-Identifier: Apache-2.0
// Recorded results of published software. The cases are found at run time, so that another folder
// of the same layout can be used in place of the repository's: TESSERA_GOLDEN=/other/folder ctest
// -R '^golden'.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/source_dir.h"

#include "tessera/config/json.h"

namespace tessera::golden {

namespace fs = std::filesystem;

/// $TESSERA_GOLDEN, or the repository's own copy.
inline fs::path folder() {
  const char* chosen = std::getenv("TESSERA_GOLDEN");
  if (chosen != nullptr && *chosen != '\0') return chosen;
  return test::source_dir() / "tests" / "golden" / "reference";
}

/// The files and folders of one kind ("models", "optim", "sched", "tokenizers"), sorted by name.
/// Throws if there are none: a run that proves nothing must not pass.
inline std::vector<fs::path> cases(const std::string& kind) {
  std::vector<fs::path> found;
  if (fs::is_directory(folder() / kind)) {
    for (const auto& entry : fs::directory_iterator(folder() / kind))
      found.push_back(entry.path());
  }
  if (found.empty()) throw std::runtime_error("no golden cases in " + (folder() / kind).string());
  std::sort(found.begin(), found.end());
  return found;
}

inline std::string text(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + path.string());
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

inline json::Value read_json(const fs::path& path) {
  return json::parse_strict(text(path), path.string());
}

/// One value a line (JSON Lines); empty lines are skipped.
inline std::vector<json::Value> read_jsonl(const fs::path& path) {
  std::vector<json::Value> values;
  std::istringstream in(text(path));
  for (std::string line; std::getline(in, line);) {
    if (!line.empty()) values.push_back(json::parse_strict(line, path.string()));
  }
  return values;
}

/// The member; throws with its name where it is absent.
inline const json::Value& at(const json::Value& object, const std::string& key) {
  const json::Value* value = object.find(key);
  if (value == nullptr) throw std::runtime_error("golden case without \"" + key + "\"");
  return *value;
}

/// The numbers of nested arrays in row-major order.
inline void append_numbers(const json::Value& value, std::vector<double>& out) {
  if (!value.is_array()) {
    out.push_back(value.as_double());
    return;
  }
  for (const json::Value& item : value.items())
    append_numbers(item, out);
}
inline std::vector<double> numbers(const json::Value& value) {
  std::vector<double> out;
  append_numbers(value, out);
  return out;
}

}  // namespace tessera::golden
