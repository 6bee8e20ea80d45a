// SPDX-License-Identifier: Apache-2.0
// Segmentation of Chinese text into words with the dictionary and the hidden Markov model of jieba
// 0.42.1 (https://github.com/fxsjy/jieba, MIT): the words are those of jieba.cut(text). A run of
// Chinese characters, letters and digits is cut along the most probable path through the words of
// the dictionary; neighbouring single characters of the path are cut by the hidden Markov model of
// characters that begin, continue, end or are a word.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tessera::text::tokenizers {

/// Memory: some 40 MB. Const methods can be called from any thread.
class Jieba {
 public:
  /// Reads dict.txt and finalseg/prob_{start,trans,emit}.py of the Python package in `folder`.
  /// Throws Error{Io} if one cannot be read and Error{Format} if it is not such a file.
  explicit Jieba(const std::filesystem::path& folder);

  /// The folder of the Python package: $TESSERA_JIEBA, or where Debian's python3-jieba has it.
  /// Throws Error{Config} with the command that installs it if there is none.
  static std::filesystem::path find();

  /// The ends of the words that are all of `text`, ascending. Cost: proportional to the length.
  [[nodiscard]] std::vector<std::size_t> cut(const std::vector<char32_t>& text) const;
  /// Identifies the contents of the files.
  [[nodiscard]] const std::string& fingerprint() const { return fingerprint_; }

 private:
  using Ends = std::vector<std::size_t>;
  static constexpr std::size_t kStates = 4;  // B, E, M, S in the order of their letters
  using OfStates = std::array<double, kStates>;

  void read_dictionary(const std::string& text, const std::string& where);
  void read_model(const std::filesystem::path& folder);
  /// The node of a word's next character, or 0.
  [[nodiscard]] std::uint32_t next(std::uint32_t node, char32_t c) const;
  [[nodiscard]] std::int64_t frequency(const std::vector<char32_t>& text,
                                       std::size_t begin,
                                       std::size_t end) const;
  /// Cuts [begin, end), characters of which words consist.
  void cut_run(const std::vector<char32_t>& text,
               std::size_t begin,
               std::size_t end,
               Ends& out) const;
  /// Cuts [begin, end), single characters on the path.
  void cut_unknown(const std::vector<char32_t>& text,
                   std::size_t begin,
                   std::size_t end,
                   Ends& out) const;
  void cut_by_states(const std::vector<char32_t>& text,
                     std::size_t begin,
                     std::size_t end,
                     Ends& out) const;

  std::unordered_map<std::uint64_t, std::uint32_t> edges_;  // of a trie; node 0 is its root
  std::vector<std::int64_t> frequencies_ = {0};             // by node; 0: no word
  double log_total_ = 0.0;
  OfStates start_{};
  std::array<OfStates, kStates> transitions_{};
  std::unordered_map<char32_t, OfStates> emissions_;
  std::string fingerprint_;
};

}  // namespace tessera::text::tokenizers
