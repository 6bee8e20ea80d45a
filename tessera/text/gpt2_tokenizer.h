// SPDX-License-Identifier: Apache-2.0
// GPT-2's tokenizer: pattern, byte-level merges, one special token.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tessera/text/bpe.h"
#include "tessera/text/gpt2_split.h"
#include "tessera/text/tokenizer.h"

namespace tessera::text {

/// Exactly as GPT2Tokenizer; any bytes can be encoded, and decode restores them (invalid UTF-8 is
/// split like punctuation). Each encoding thread takes a state of some 2 MiB from a pool and
/// returns it with the words it has seen. Const methods can be called from any thread.
class Gpt2Tokenizer final : public Tokenizer {
 public:
  explicit Gpt2Tokenizer(BpeModel model);
  ~Gpt2Tokenizer() override;
  [[nodiscard]] std::string name() const override { return "gpt2"; }
  [[nodiscard]] std::int64_t size() const override {
    return static_cast<std::int64_t>(model_.tokens.size());
  }
  [[nodiscard]] std::int32_t end_of_text() const override { return model_.end_of_text; }
  void encode(std::string_view text, std::vector<std::int32_t>& out, bool special) const override;
  [[nodiscard]] std::string_view bytes_of(std::int32_t id) const override;
  [[nodiscard]] bool is_special(std::int32_t id) const override { return id == end_of_text(); }
  [[nodiscard]] std::string fingerprint() const override { return fingerprint_; }
  [[nodiscard]] std::size_t cut(std::string_view text, std::size_t from) const override {
    return splitter_.cut(text, from);
  }

 private:
  class State;
  void encode_ordinary(std::string_view text, State& state, std::vector<std::int32_t>& out) const;
  std::span<const std::int32_t> merge(std::string_view piece, State& state) const;

  BpeModel model_;
  PairTable pairs_;
  Gpt2Splitter splitter_;
  std::int32_t byte_ids_[256] = {};
  std::string fingerprint_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<State>> idle_;
};

}  // namespace tessera::text
