// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/tokenizer_training.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/worker_threads.h"
#include "tessera/data/json_line.h"
#include "tessera/data/sources.h"
#include "tessera/text/tokenizers/characters.h"

namespace tessera::data {
namespace {

namespace fs = std::filesystem;
using text::tokenizers::PieceCounts;
using text::tokenizers::TrainingOptions;

/// Lines [begin, end) of a file, in bytes.
struct Stretch {
  Source source;
  std::shared_ptr<const files::Mapped> file;
  std::string_view text;
  std::size_t begin = 0, end = 0;
};

std::string place_of(const Stretch& stretch, std::size_t at) {
  const auto line = std::count(
      stretch.text.begin(), stretch.text.begin() + static_cast<std::ptrdiff_t>(at), '\n');
  return fmt::format("{}:{}", stretch.source.path.string(), line + 1);
}

/// Counts the pieces of ranges, which threads take one after the other.
class Counter {
 public:
  explicit Counter(const TrainingOptions& options) : options_(options), counter_(options) {}

  void add(const Stretch& stretch) {
    std::unordered_map<std::string, std::int64_t> counts;
    for (std::size_t at = stretch.begin; at < stretch.end;) {
      const std::size_t found = stretch.text.find('\n', at);
      const std::size_t end = found == std::string_view::npos ? stretch.text.size() : found + 1;
      add_line(stretch, at, stretch.text.substr(at, end - at), counts);
      at = end;
    }
    const std::scoped_lock lock(mutex_);
    for (const auto& [piece, count] : counts)
      total_[piece] += count;
  }
  [[nodiscard]] const PieceCounts& total() const { return total_; }

 private:
  void add_line(const Stretch& stretch,
                std::size_t at,
                std::string_view line,
                std::unordered_map<std::string, std::int64_t>& counts) const {
    TESSERA_REQUIRE(text::tokenizers::is_valid_utf8(line),
                    Data,
                    fmt::format("{}: the line is not UTF-8", place_of(stretch, at)),
                    "convert the file to UTF-8");
    if (stretch.source.kind == Source::Kind::Text) {
      counter_.count(line, counts);
      return;
    }
    if (line.find_first_not_of(" \t\r\n") == std::string_view::npos) return;
    std::string text;
    std::int64_t replaced = 0;
    const auto problem =
        read_text_field(line, options_.text_field, /*replace=*/false, text, replaced);
    if (problem) {
      throw Error(
          Error::Kind::Data,
          fmt::format("{}:{}: {}", place_of(stretch, at), problem->offset + 1, problem->what),
          problem->fix);
    }
    counter_.count(text, counts);
  }

  const TrainingOptions& options_;
  text::tokenizers::PieceCounter counter_;
  std::mutex mutex_;
  PieceCounts total_;
};

std::vector<Stretch> stretches_of(const std::vector<fs::path>& sources) {
  constexpr std::size_t kBytes = std::size_t{1} << 20U;
  std::vector<Stretch> out;
  for (const Source& source : expand_sources(sources)) {
    refuse_range(source);
    const auto file = map_source(source.path);
    const std::string_view text = without_bom(file->text());
    for (std::size_t begin = 0; begin < text.size();) {
      std::size_t end = text.find('\n', std::min(begin + kBytes, text.size() - 1));
      end = end == std::string_view::npos ? text.size() : end + 1;
      out.push_back({source, file, text, begin, end});
      begin = end;
    }
  }
  return out;
}

PieceCounts count_pieces(const std::vector<fs::path>& sources, const TrainingOptions& options) {
  const std::vector<Stretch> stretches = stretches_of(sources);
  Counter counter(options);
  std::atomic<std::size_t> next = 0;
  on_threads(options.threads, [&](bool polls, const std::atomic<bool>& failed) {
    for (std::size_t mine = next++; mine < stretches.size() && !failed; mine = next++) {
      if (polls && options.poll) options.poll();
      counter.add(stretches[mine]);
    }
  });
  return counter.total();
}

}  // namespace

text::tokenizers::TrainedTokenizer train_tokenizer(const std::vector<fs::path>& sources,
                                                   const TrainingOptions& options) {
  (void)text::tokenizers::special_tokens(options);  // refuses bad ones before anything is read
  return text::tokenizers::train_tokenizer(count_pieces(sources, options), options);
}

}  // namespace tessera::data
