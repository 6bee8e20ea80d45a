// SPDX-License-Identifier: Apache-2.0
// Converts text to tokens, for example of a .bin/.idx pair: threads encode chunks in any order, and
// the chunks are written in order.
#include <algorithm>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <thread>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/data/chunks.h"
#include "tessera/data/token_file.h"

namespace tessera::data {
namespace {

namespace fs = std::filesystem;

/// Joins the results of the chunks.
class Joiner {
 public:
  Joiner(TokenSink& sink, const text::Tokenizer& tokenizer, TokenWidth width) : sink_(sink) {
    const std::int32_t end = tokenizer.end_of_text();
    append_tokens({&end, 1}, width, end_of_text_);
  }

  void add(const Encoded& chunk) {
    if (chunk.error) std::rethrow_exception(chunk.error);
    stats.bytes += chunk.bytes;
    stats.skipped_empty += chunk.skipped_empty;
    stats.replaced_utf8 += chunk.replaced_utf8;
    if (chunk.lengths.empty()) return;
    if (!chunk.continues) begin_document();
    for (std::size_t i = 0; i < chunk.lengths.size(); ++i) {
      if (i > 0) sink_.begin_document();
      sink_.add_to_document(chunk.lengths[i]);
      stats.tokens += chunk.lengths[i];
    }
    sink_.write(chunk.tokens);
    stats.documents = sink_.documents();
  }

  TokenizeStats stats;

 private:
  void begin_document() {
    if (sink_.documents() > 0) {
      sink_.add_to_document(1);
      sink_.write(end_of_text_);
      ++stats.tokens;
    }
    sink_.begin_document();
  }

  TokenSink& sink_;
  std::vector<std::byte> end_of_text_;
};

/// Threads that take chunks from a queue and return them in order. At most kAhead chunks per thread
/// wait for the writer, which bounds the memory whatever the size of the data. If no more threads
/// can be created, there are fewer than requested, or none.
class Workers {
 public:
  Workers(Chunker& chunker, int threads, const ChunkEncoder& encoder)
      : chunker_(chunker), limit_(kAhead * threads) {
    try {
      threads_.reserve(static_cast<std::size_t>(threads));
      for (int i = 0; i < threads; ++i)
        threads_.emplace_back([this, &encoder] { work(encoder); });
    } catch (const std::exception&) {
      // No thread or no memory is available: the running threads do all the work.
    }
  }
  ~Workers() {
    {
      const std::scoped_lock lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_)
      thread.join();
  }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  [[nodiscard]] bool none() const { return threads_.empty(); }
  /// Returns the next chunk in order; false at the end. Needs at least one thread.
  bool next(Encoded& out) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] {
      return failure_ || ready_.count(written_) > 0 || (ended_ && written_ == taken_);
    });
    if (failure_) std::rethrow_exception(failure_);
    const auto it = ready_.find(written_);
    if (it == ready_.end()) return false;
    out = std::move(it->second);
    ready_.erase(it);
    ++written_;
    changed_.notify_all();
    return true;
  }

 private:
  static constexpr std::int64_t kAhead = 4;

  // Whatever a thread lacks, such as memory, is an error of the thread that waits.
  void work(const ChunkEncoder& shared) noexcept {
    try {
      ChunkEncoder encoder = shared;
      for (;;) {
        Chunk chunk;
        std::int64_t number = 0;
        Encoded encoded;
        if (!take(chunk, number, encoded)) return;
        if (!encoded.error) encoded = encoder.encode(chunk);
        const std::scoped_lock lock(mutex_);
        ready_.emplace(number, std::move(encoded));
        changed_.notify_all();
      }
    } catch (...) {
      const std::scoped_lock lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
      stop_ = true;
      changed_.notify_all();
    }
  }

  // If a file cannot be opened, its first chunk reports the error.
  bool take(Chunk& chunk, std::int64_t& number, Encoded& encoded) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return stop_ || ended_ || taken_ - written_ < limit_; });
    if (stop_ || ended_) return false;
    try {
      ended_ = !chunker_.next(chunk);
    } catch (...) {
      encoded.error = std::current_exception();
      ended_ = true;
      number = taken_++;
      return true;
    }
    if (ended_) {
      changed_.notify_all();
      return false;
    }
    number = taken_++;
    return true;
  }

  Chunker& chunker_;
  std::int64_t limit_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::int64_t, Encoded> ready_;
  std::int64_t taken_ = 0, written_ = 0;
  bool ended_ = false, stop_ = false;
  std::exception_ptr failure_;
  std::vector<std::thread> threads_;  // last members, because they use the ones above
};

std::int64_t bytes_of(const std::vector<Source>& sources) {
  std::int64_t bytes = 0;
  std::error_code ignored;
  for (const Source& source : sources) {
    const auto size = fs::file_size(source.path, ignored);
    if (!ignored) bytes += static_cast<std::int64_t>(size);
  }
  return bytes;
}

int threads_for(const TokenizeOptions& options, std::int64_t bytes) {
  const int wanted =
      options.threads > 0 ? options.threads : static_cast<int>(std::thread::hardware_concurrency());
  const std::int64_t chunks = bytes / static_cast<std::int64_t>(Chunker::kChunkBytes) + 1;
  return static_cast<int>(std::clamp<std::int64_t>(wanted, 1, chunks));
}

std::string list_of(const std::vector<fs::path>& paths) {
  std::vector<std::string> names;
  names.reserve(paths.size());
  for (const fs::path& path : paths)
    names.push_back(path.string());
  return text::join(names, ", ");
}

}  // namespace

TokenizeStats tokenize_into(TokenSink& sink,
                            const std::vector<Source>& files,
                            const text::Tokenizer& tokenizer,
                            const TokenizeOptions& options) {
  TESSERA_REQUIRE(options.invalid_utf8 == "refuse" || options.invalid_utf8 == "replace",
                  Config,
                  fmt::format("invalid_utf8 is \"{}\"", options.invalid_utf8),
                  "expected \"refuse\" or \"replace\"");
  const std::int64_t total = bytes_of(files);
  const TokenWidth width = token_width(tokenizer.size());
  Joiner joiner(sink, tokenizer, width);
  Chunker chunker(files, tokenizer, options.text_field);
  ChunkEncoder encoder(tokenizer, options, width);
  const auto add = [&](const Encoded& encoded) {
    joiner.add(encoded);
    if (options.poll) options.poll();
    if (options.progress) options.progress(std::min(joiner.stats.bytes, total), total);
  };
  const int threads = threads_for(options, total);
  Workers workers(chunker, threads == 1 ? 0 : threads, encoder);
  if (workers.none()) {
    for (Chunk chunk; chunker.next(chunk);)
      add(encoder.encode(chunk));
  } else {
    for (Encoded encoded; workers.next(encoded);)
      add(encoded);
  }
  // The lines before a slice are empty (SourceText).
  for (const Source& source : files)
    if (source.range && source.kind != Source::Kind::Text)
      joiner.stats.skipped_empty -= source.range->begin;
  return joiner.stats;
}

TokenizeStats tokenize(const std::vector<fs::path>& sources,
                       const text::Tokenizer& tokenizer,
                       const fs::path& prefix,
                       const TokenizeOptions& options) {
  const std::vector<Source> files = expand_sources(sources);
  TokenWriter writer(prefix, token_width(tokenizer.size()));
  const TokenizeStats stats = tokenize_into(writer, files, tokenizer, options);
  TESSERA_REQUIRE(stats.documents > 0,
                  Data,
                  fmt::format("no text in {}: {}",
                              list_of(sources),
                              bytes_of(files) == 0 ? "empty" : "only blank lines and empty texts"),
                  "name files with text in them");
  writer.finish();
  return stats;
}

}  // namespace tessera::data
