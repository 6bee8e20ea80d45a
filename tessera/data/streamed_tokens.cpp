// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/streamed_tokens.h"

#include <algorithm>
#include <span>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/data/chunks.h"
#include "tessera/data/token_writer.h"

namespace tessera::data {
namespace {

std::uint64_t hash_of(const Source& source) {
  return files::xxh3(std::as_bytes(std::span(map_source(source.path)->text())));
}

/// The index of the part that contains `at`; `begins` are the first positions of the parts, and
/// the end of the last one.
std::size_t part_of(const std::vector<std::int64_t>& begins, std::int64_t at) {
  TESSERA_ASSERT(at >= 0 && at < begins.back());
  // The last part that begins there is the one that is not empty.
  return static_cast<std::size_t>(std::ranges::upper_bound(begins, at) - begins.begin() - 1);
}

}  // namespace

/// The tokens of one file, in memory.
class StreamedTokens::Held final : public TokenFile, public TokenSink {
 public:
  explicit Held(TokenWidth width) : width_(width) {}

  void write(std::span<const std::byte> tokens) override {
    bytes_.insert(bytes_.end(), tokens.begin(), tokens.end());
  }
  void begin_document() override { begins_.push_back(begins_.back()); }
  void add_to_document(std::int64_t tokens) override { begins_.back() += tokens; }
  [[nodiscard]] std::int64_t documents() const override { return sequences(); }

  [[nodiscard]] std::int64_t tokens() const override { return begins_.back(); }
  [[nodiscard]] std::int64_t sequences() const override { return std::ssize(begins_) - 1; }
  [[nodiscard]] std::int64_t sequence_begin(std::int64_t index) const override {
    return begins_.at(static_cast<std::size_t>(index));
  }
  [[nodiscard]] std::int64_t sequence_length(std::int64_t index) const override {
    return sequence_begin(index + 1) - sequence_begin(index);
  }
  void read(std::int64_t begin, std::int64_t count, std::int64_t* out) const override {
    TESSERA_ASSERT(begin >= 0 && count >= 0 && count <= tokens() - begin);
    const auto copy = [&](const auto* ids) { std::copy_n(ids + begin, count, out); };
    if (width_ == TokenWidth::U16) {
      copy(reinterpret_cast<const std::uint16_t*>(bytes_.data()));
    } else {
      copy(reinterpret_cast<const std::int32_t*>(bytes_.data()));
    }
  }
  void check_ids(std::int64_t /*vocab*/, const std::function<void()>& /*poll*/) const override {}

 private:
  TokenWidth width_;
  std::vector<std::byte> bytes_;
  std::vector<std::int64_t> begins_ = {0};  ///< of the documents, and the end of the last one
};

StreamedTokens::StreamedTokens(const std::vector<std::filesystem::path>& sources,
                               const text::Tokenizer& tokenizer,
                               const TokenizeOptions& how,
                               const StreamedTokensOptions& options)
    : tokenizer_(tokenizer), how_(how), window_(options.window) {
  TESSERA_ASSERT(window_ > 0 && options.head >= 0);
  TESSERA_REQUIRE(sources.size() != 1 || !names_token_file(sources.front()),
                  Data,
                  fmt::format("data.streaming tokenizes texts, and {} has tokens already",
                              sources.front().string()),
                  "remove data.streaming: a token file is read while it is used in any case");
  std::int64_t last = -1;  // the last file with a document
  for (Source& source : expand_sources(sources)) {
    File& file = files_.emplace_back(File{.source = std::move(source)});
    file.hash = hash_of(file.source);
    const std::shared_ptr<const Held> tokens = tokenized(file, &stats_);
    if (options.check) options.check(file.source.path.string(), *tokens);
    std::vector<std::int64_t> head(
        static_cast<std::size_t>(std::min(options.head, tokens->tokens())));
    tokens->read(0, std::ssize(head), head.data());
    file.head.assign(head.begin(), head.end());
    token_begins_.push_back(token_begins_.back() + tokens->tokens());
    sequence_begins_.push_back(sequence_begins_.back() + tokens->sequences());
    if (tokens->sequences() > 0) last = std::ssize(files_) - 1;
  }
  TESSERA_REQUIRE(last >= 0,
                  Data,
                  "data.train has no text: only blank lines and empty texts",
                  "name files with text in them");
  std::int64_t joints = 0;
  for (std::size_t f = 0; f < files_.size(); ++f) {
    files_[f].ends =
        static_cast<std::int64_t>(f) < last && sequence_begins_[f + 1] > sequence_begins_[f];
    joints += files_[f].ends ? 1 : 0;
    token_begins_[f + 1] += joints;
  }
  stats_.tokens += joints;
  // Both belong to the caller's start; later several ranks tokenize at the same time.
  how_.poll = {};
  how_.progress = {};
  how_.threads = 1;
}

std::shared_ptr<const StreamedTokens::Held> StreamedTokens::tokenized(const File& file,
                                                                      TokenizeStats* stats) const {
  auto out = std::make_shared<Held>(token_width(tokenizer_.size()));
  const TokenizeStats own = tokenize_into(*out, {file.source}, tokenizer_, how_);
  if (stats != nullptr) *stats += own;
  if (file.ends) {
    const std::int32_t end = tokenizer_.end_of_text();
    std::vector<std::byte> bytes;
    append_tokens({&end, 1}, token_width(tokenizer_.size()), bytes);
    out->write(bytes);
    out->add_to_document(1);
  }
  return out;
}

std::shared_ptr<const StreamedTokens::Held> StreamedTokens::opened(std::size_t file) const {
  // Samples of the window and of the next one are read at the same time where both meet.
  return held_.get(file, static_cast<std::size_t>(2 * window_), [&] {
    TESSERA_REQUIRE(hash_of(files_[file].source) == files_[file].hash,
                    Data,
                    fmt::format("{} has changed since the training began to read it",
                                files_[file].source.path.string()),
                    "restart, and do not change the file during training");
    return tokenized(files_[file], nullptr);
  });
}

std::int64_t StreamedTokens::sequence_begin(std::int64_t index) const {
  const std::size_t file = part_of(sequence_begins_, index);
  return token_begins_[file] + opened(file)->sequence_begin(index - sequence_begins_[file]);
}

std::int64_t StreamedTokens::sequence_length(std::int64_t index) const {
  const std::size_t file = part_of(sequence_begins_, index);
  return opened(file)->sequence_length(index - sequence_begins_[file]);
}

void StreamedTokens::read(std::int64_t begin, std::int64_t count, std::int64_t* out) const {
  TESSERA_ASSERT(begin >= 0 && count >= 0 && count <= tokens() - begin);
  while (count > 0) {
    const std::size_t file = part_of(token_begins_, begin);
    const std::int64_t some = std::min(count, token_begins_[file + 1] - begin);
    read_file(file, begin - token_begins_[file], some, out);
    begin += some;
    count -= some;
    out += some;
  }
}

void StreamedTokens::read_file(std::size_t file,
                               std::int64_t begin,
                               std::int64_t count,
                               std::int64_t* out) const {
  const std::vector<std::int32_t>& head = files_[file].head;
  if (begin + count <= std::ssize(head)) {
    std::copy_n(head.begin() + begin, count, out);
    return;
  }
  opened(file)->read(begin, count, out);
}

void StreamedTokens::check_ids(std::int64_t /*vocab*/,
                               const std::function<void()>& /*poll*/) const {}

std::string StreamedTokens::fingerprint() const {
  std::string text = fmt::format("streamed {} {}", tokenizer_.fingerprint(), window_);
  for (const File& file : files_)
    text += " " + files::hex64(file.hash);
  return files::hex64(files::xxh3(std::as_bytes(std::span(text))));
}

}  // namespace tessera::data
