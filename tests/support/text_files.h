// SPDX-License-Identifier: Apache-2.0
// Files and texts for tests of text and data.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/text/tokenizer.h"

namespace tessera::test {

namespace fs = std::filesystem;

/// A temporary folder with short functions that write files into it.
class Folder {
 public:
  [[nodiscard]] fs::path operator/(const std::string& name) const { return temp_.path() / name; }
  [[nodiscard]] const fs::path& path() const { return temp_.path(); }
  fs::path write(const std::string& name, std::string_view content) const {
    const fs::path path = temp_.path() / name;
    fs::create_directories(path.parent_path());
    fs::remove(path);  // some file systems sync a file that is truncated and written again
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(temp_.path())) {
      names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

 private:
  files::TempDir temp_;
};

inline std::string bytes_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

inline const text::TokenizerPtr& gpt2() {
  static const text::TokenizerPtr tokenizer = text::make_tokenizer({.type = "gpt2"});
  return tokenizer;
}
inline const text::TokenizerPtr& byte() {
  static const text::TokenizerPtr tokenizer = text::make_tokenizer({.type = "byte"});
  return tokenizer;
}
inline std::vector<std::int32_t> ids_of(const text::Tokenizer& tokenizer,
                                        std::string_view text,
                                        bool special = true) {
  std::vector<std::int32_t> ids;
  tokenizer.encode(text, ids, special);
  return ids;
}

inline std::string utf8_of(char32_t c) {
  std::string out;
  const auto put = [&out](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6), put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12), put(0x80 | (c >> 6 & 0x3F)), put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | c >> 18), put(0x80 | (c >> 12 & 0x3F)), put(0x80 | (c >> 6 & 0x3F)),
        put(0x80 | (c & 0x3F));
  }
  return out;
}

/// Text with everything that splitters and merges may get wrong: contractions, runs of white space,
/// digits, punctuation, the special token, and characters of every plane.
inline std::string random_text(std::mt19937& random, int pieces) {
  static const std::vector<std::string> kPieces = {" ",
                                                   "  ",
                                                   "\n",
                                                   "\r\n",
                                                   "\t",
                                                   "\n\n\n",
                                                   "'s",
                                                   "'ll",
                                                   "'re",
                                                   "'ve",
                                                   "'t",
                                                   "'",
                                                   "''",
                                                   "don't",
                                                   " the",
                                                   "The",
                                                   "antidisestablishment",
                                                   "0",
                                                   "42",
                                                   " 1999",
                                                   ".",
                                                   ", ",
                                                   "...",
                                                   "!?",
                                                   "(",
                                                   " \"",
                                                   "<|endoftext|>",
                                                   "<|endoftext",
                                                   "\u00A0",
                                                   "\u3000",
                                                   "\u0085",
                                                   "\u2028",
                                                   "\u200B",
                                                   "\uFEFF",
                                                   "é",
                                                   "ß",
                                                   "Привет",
                                                   " мир",
                                                   "你好",
                                                   "世界",
                                                   "日本語",
                                                   "١٢٣",
                                                   "²",
                                                   "½",
                                                   "e\u0301",
                                                   "😀",
                                                   "👩‍👩‍👧",
                                                   "aaaaaaaa",
                                                   "=====",
                                                   "\x1c"};
  std::string text;
  for (int i = 0; i < pieces; ++i) {
    if (random() % 4 != 0) {
      text += kPieces[random() % kPieces.size()];
      continue;
    }
    const char32_t limits[] = {0x80, 0x800, 0x3000, 0x10000, 0x20000, 0x110000};
    const char32_t c = static_cast<char32_t>(random()) % limits[random() % 6];
    if (c < 0xD800 || c > 0xDFFF) text += utf8_of(c);
  }
  return text;
}

/// The error that `run` throws; fails the test if it throws none.
inline Error error_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& e) {
    return e;
  }
  ADD_FAILURE() << "no error was thrown";
  return Error(Error::Kind::Bug, "");
}

/// Succeeds if `text` contains `part`; prints both if not.
inline ::testing::AssertionResult contains(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "\"" << text << "\" has no \"" << part << "\"";
}

}  // namespace tessera::test
