// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/gpt2_tokenizer.h"

#include <array>
#include <cstring>
#include <limits>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/text/word_cache.h"

namespace tessera::text {
namespace {

constexpr std::string_view kEndOfText = "<|endoftext|>";

template <class T>
std::span<const std::byte> bytes(const T* data, std::size_t count) {
  return std::as_bytes(std::span(data, count));
}

// A hash of everything on which encode depends, whatever its source.
std::string fingerprint_of(const BpeModel& model) {
  files::Hasher hasher;
  for (const std::string& token : model.tokens) {
    const std::uint64_t length = token.size();
    hasher.update(bytes(&length, 1));
    hasher.update(bytes(token.data(), token.size()));
  }
  hasher.update(bytes(model.merges.data(), model.merges.size()));
  hasher.update(bytes(&model.end_of_text, 1));
  return "gpt2-r50k-" + files::hex64(hasher.digest());
}

}  // namespace

/// The working state of one thread during encoding.
class Gpt2Tokenizer::State {
 public:
  explicit State(const PairTable& pairs) : merger(pairs) {}
  WordCache words;
  BpeMerger merger;
  std::vector<std::int32_t> symbols;
};

Gpt2Tokenizer::Gpt2Tokenizer(BpeModel model)
    : model_(std::move(model)),
      pairs_(model_.merges),
      splitter_(CharClasses::instance()),
      fingerprint_(fingerprint_of(model_)) {
  for (std::size_t id = 0; id < model_.tokens.size(); ++id) {
    const std::string& token = model_.tokens[id];
    if (token.size() == 1) {
      byte_ids_[static_cast<unsigned char>(token[0])] = static_cast<std::int32_t>(id);
    }
  }
}

Gpt2Tokenizer::~Gpt2Tokenizer() = default;

std::string_view Gpt2Tokenizer::bytes_of(std::int32_t id) const {
  if (id < 0 || id >= size()) return {};
  return model_.tokens[static_cast<std::size_t>(id)];
}

void Gpt2Tokenizer::encode(std::string_view text,
                           std::vector<std::int32_t>& out,
                           bool special) const {
  std::unique_ptr<State> state;
  {
    const std::scoped_lock lock(mutex_);
    if (!idle_.empty()) {
      state = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  if (!state) state = std::make_unique<State>(pairs_);
  while (special) {
    const std::size_t at = text.find(kEndOfText);
    if (at == std::string_view::npos) break;
    encode_ordinary(text.substr(0, at), *state, out);
    out.push_back(model_.end_of_text);
    text.remove_prefix(at + kEndOfText.size());
  }
  encode_ordinary(text, *state, out);
  const std::scoped_lock lock(mutex_);
  idle_.push_back(std::move(state));
}

void Gpt2Tokenizer::encode_ordinary(std::string_view text,
                                    State& state,
                                    std::vector<std::int32_t>& out) const {
  // Ids are first collected here, because a word's seven slots are always copied as a whole.
  std::array<std::int32_t, 1024> buffer;
  std::size_t filled = 0;
  const auto flush = [&] {
    out.insert(out.end(), buffer.begin(), buffer.begin() + static_cast<std::ptrdiff_t>(filled));
    filled = 0;
  };
  const char* p = text.data();
  const char* const end = p + text.size();
  while (p < end) {
    const char* const q = splitter_.next(p, end);
    const auto length = static_cast<std::size_t>(q - p);
    if (filled + WordCache::kMostIds > buffer.size()) flush();
    if (length <= WordCache::kLongestWord) {
      const WordCache::Key key = WordCache::key_of(p, length, end);
      WordCache::Entry& entry = state.words.entry(key);
      if (entry.key == key) {
        std::memcpy(buffer.data() + filled, entry.ids, sizeof entry.ids);
        filled += static_cast<std::size_t>(entry.count);
        p = q;
        continue;
      }
      const auto ids = merge({p, length}, state);
      WordCache::store(entry, key, ids);
      flush();
      out.insert(out.end(), ids.begin(), ids.end());
    } else {
      const auto ids = merge({p, length}, state);
      flush();
      out.insert(out.end(), ids.begin(), ids.end());
    }
    p = q;
  }
  flush();
}

std::span<const std::int32_t> Gpt2Tokenizer::merge(std::string_view piece, State& state) const {
  TESSERA_REQUIRE(piece.size() < static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()),
                  Data,
                  fmt::format("a single word of {} bytes", piece.size()),
                  "text of this size has white space in it; is this a text file?");
  state.symbols.clear();
  for (const char c : piece)
    state.symbols.push_back(byte_ids_[static_cast<unsigned char>(c)]);
  return state.merger.merge(state.symbols);
}

}  // namespace tessera::text
