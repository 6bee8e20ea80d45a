// SPDX-License-Identifier: Apache-2.0
// A working directory for commands of other programs, with a folder of a model and files of data.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/interop/foreign_command.h"

namespace tessera::interop {

class CommandFolder : public testing::Test {
 protected:
  void SetUp() override {
    before_ = std::filesystem::current_path();
    std::filesystem::current_path(folder_.path());
    setenv("TESSERA_CACHE", (folder_.path() / "cache-of-tessera").c_str(), 1);
    std::filesystem::create_directories("m");
    write("m/config.json", R"({"model_type": "llama"})");
    write("t.txt", "one two three\n");
  }
  void TearDown() override {
    unsetenv("TESSERA_CACHE");
    std::filesystem::current_path(before_);
  }

  static void write(const std::filesystem::path& file, const std::string& text) {
    std::error_code ignored;
    if (file.has_parent_path()) std::filesystem::create_directories(file.parent_path(), ignored);
    std::ofstream(file, std::ios::binary) << text;
  }
  static std::vector<std::string> words(const std::string& line) {
    std::vector<std::string> out;
    for (const std::string& word : text::split(line, ' ')) {
      if (!word.empty()) out.push_back(word);
    }
    return out;
  }
  static ForeignCommand read(const std::string& line) { return read_foreign_command(words(line)); }

  /// The text of a key, or "none".
  static std::string key(const ForeignCommand& command, const std::string& path) {
    const json::Value* at = &command.source;
    for (const std::string& step : text::split(path, '.'))
      at = at != nullptr && at->is_object() ? at->find(step) : nullptr;
    return at == nullptr ? "none" : at->dump();
  }
  static std::string refusal(const std::string& line) {
    try {
      read(line);
    } catch (const Error& error) {
      return error.text();
    }
    return "accepted";
  }

 private:
  files::TempDir folder_;
  std::filesystem::path before_;
};

}  // namespace tessera::interop
