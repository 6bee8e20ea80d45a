// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/tokenizers/training.h"

#include <algorithm>
#include <array>
#include <exception>
#include <mutex>
#include <thread>
#include <unordered_map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/data/json_line.h"
#include "tessera/data/sources.h"
#include "tessera/data/tokenizers/aligned_text.h"
#include "tessera/data/tokenizers/characters.h"
#include "tessera/data/tokenizers/normalizers.h"
#include "tessera/data/tokenizers/pre_tokenizers.h"

namespace tessera::data::tokenizers {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

constexpr const char* kEndOfText = "<|endoftext|>";
constexpr std::array kBertSpecial = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
constexpr const char* kInnerPrefix = "##";

OrderedJson byte_level() {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", true}};
}
OrderedJson bert_normalizer(bool lowercase) {
  return {{"type", "BertNormalizer"},
          {"clean_text", true},
          {"handle_chinese_chars", true},
          {"strip_accents", nullptr},
          {"lowercase", lowercase}};
}

/// Splits a text into what a model sees, with the parts that the written file will have.
class Splitter {
 public:
  explicit Splitter(const TrainingOptions& options) {
    const bool bytes = options.kind == TrainedKind::Bpe;
    const json pieces = bytes ? json(byte_level()) : json{{"type", "BertPreTokenizer"}};
    pieces_ = read_pre_tokenizer(Part(pieces, "pre_tokenizer"));
    if (bytes) return;
    const json normalizer = bert_normalizer(options.lowercase);
    normalizer_ = read_normalizer(Part(normalizer, "normalizer"));
  }
  void count(std::string_view text, std::unordered_map<std::string, std::int64_t>& out) const {
    if (text.empty()) return;
    AlignedText whole(text, 0, /*tracked=*/false);
    if (normalizer_) normalizer_->apply(whole);
    std::vector<AlignedText> pieces;
    pieces_->apply(std::move(whole), pieces);
    for (const AlignedText& piece : pieces)
      ++out[piece.str()];
  }

 private:
  NormalizerPtr normalizer_;
  PreTokenizerPtr pieces_;
};

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
  explicit Counter(const TrainingOptions& options) : options_(options), splitter_(options) {}

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
    TESSERA_REQUIRE(is_valid_utf8(line),
                    Data,
                    fmt::format("{}: the line is not UTF-8", place_of(stretch, at)),
                    "convert the file to UTF-8");
    if (stretch.source.kind == Source::Kind::Text) {
      splitter_.count(line, counts);
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
    splitter_.count(text, counts);
  }

  const TrainingOptions& options_;
  Splitter splitter_;
  std::mutex mutex_;
  PieceCounts total_;
};

std::vector<Stretch> stretches_of(const std::vector<fs::path>& sources) {
  constexpr std::size_t kBytes = std::size_t{1} << 20U;
  std::vector<Stretch> out;
  for (const Source& source : expand_sources(sources)) {
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
  std::mutex mutex;
  std::size_t next = 0;
  std::exception_ptr failure;
  const auto work = [&](bool polls) {
    for (;;) {
      std::size_t mine = 0;
      {
        const std::scoped_lock lock(mutex);
        if (failure || next == stretches.size()) return;
        mine = next++;
      }
      try {
        if (polls && options.poll) options.poll();
        counter.add(stretches[mine]);
      } catch (...) {
        const std::scoped_lock lock(mutex);
        if (!failure) failure = std::current_exception();
      }
    }
  };
  {
    std::vector<std::jthread> others;
    for (int t = 1; t < options.threads; ++t)
      others.emplace_back(work, false);
    work(true);
  }
  if (failure) std::rethrow_exception(failure);
  return counter.total();
}

std::vector<char32_t> characters_of_bytes() {
  std::vector<char32_t> out;
  for (int byte = 0; byte < 256; ++byte) {
    std::size_t at = 0;
    out.push_back(next_character(byte_character(static_cast<unsigned char>(byte)), at));
  }
  return out;
}

OrderedJson added_token(const std::string& token, std::size_t id) {
  return {{"id", id},
          {"content", token},
          {"single_word", false},
          {"lstrip", false},
          {"rstrip", false},
          {"normalized", false},
          {"special", true}};
}

OrderedJson whole_file(const std::vector<std::string>& special) {
  OrderedJson added = OrderedJson::array();
  for (std::size_t id = 0; id < special.size(); ++id)
    added.push_back(added_token(special[id], id));
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", std::move(added)}};
}

OrderedJson vocabulary_of(const LearntMerges& learnt) {
  OrderedJson out = OrderedJson::object();
  for (std::size_t id = 0; id < learnt.tokens.size(); ++id)
    out[learnt.tokens[id]] = id;
  return out;
}

OrderedJson bpe_file(const LearntMerges& learnt, const std::vector<std::string>& special) {
  OrderedJson merges = OrderedJson::array();
  for (const auto& [left, right] : learnt.merges)
    merges.push_back({left, right});
  OrderedJson out = whole_file(special);
  out["normalizer"] = nullptr;
  out["pre_tokenizer"] = out["post_processor"] = out["decoder"] = byte_level();
  out["model"] = {{"type", "BPE"},
                  {"dropout", nullptr},
                  {"unk_token", nullptr},
                  {"continuing_subword_prefix", nullptr},
                  {"end_of_word_suffix", nullptr},
                  {"fuse_unk", false},
                  {"byte_fallback", false},
                  {"ignore_merges", false},
                  {"vocab", vocabulary_of(learnt)},
                  {"merges", std::move(merges)}};
  return out;
}

/// [CLS] A [SEP], and [CLS] A [SEP] B [SEP] with type 1 after the first [SEP].
OrderedJson bert_frame(const std::vector<std::string>& special) {
  const auto token = [](const char* name, int type) {
    return OrderedJson{{"SpecialToken", {{"id", name}, {"type_id", type}}}};
  };
  const auto text = [](const char* name, int type) {
    return OrderedJson{{"Sequence", {{"id", name}, {"type_id", type}}}};
  };
  OrderedJson tokens = OrderedJson::object();
  for (const char* name : {"[CLS]", "[SEP]"}) {
    const auto id = std::ranges::find(special, name) - special.begin();
    tokens[name] = {{"id", name}, {"ids", {id}}, {"tokens", {name}}};
  }
  return {{"type", "TemplateProcessing"},
          {"single", {token("[CLS]", 0), text("A", 0), token("[SEP]", 0)}},
          {"pair",
           {token("[CLS]", 0), text("A", 0), token("[SEP]", 0), text("B", 1), token("[SEP]", 1)}},
          {"special_tokens", std::move(tokens)}};
}

OrderedJson word_piece_file(const LearntMerges& learnt,
                            const std::vector<std::string>& special,
                            bool lowercase) {
  OrderedJson out = whole_file(special);
  out["normalizer"] = bert_normalizer(lowercase);
  out["pre_tokenizer"] = {{"type", "BertPreTokenizer"}};
  out["post_processor"] = bert_frame(special);
  out["decoder"] = {{"type", "WordPiece"}, {"prefix", kInnerPrefix}, {"cleanup", true}};
  out["model"] = {{"type", "WordPiece"},
                  {"unk_token", "[UNK]"},
                  {"continuing_subword_prefix", kInnerPrefix},
                  {"max_input_chars_per_word", 100},
                  {"vocab", vocabulary_of(learnt)}};
  return out;
}

OrderedJson settings_of(const std::vector<std::string>& special, TrainedKind kind) {
  OrderedJson out = {{"tokenizer_class", "PreTrainedTokenizerFast"}};
  if (kind == TrainedKind::Bpe) {
    out["eos_token"] = special.front();
    return out;
  }
  for (const auto& [key, token] : {std::pair("pad_token", "[PAD]"),
                                   std::pair("unk_token", "[UNK]"),
                                   std::pair("cls_token", "[CLS]"),
                                   std::pair("sep_token", "[SEP]"),
                                   std::pair("mask_token", "[MASK]")}) {
    if (std::ranges::find(special, token) != special.end()) out[key] = token;
  }
  return out;
}

std::vector<std::string> special_of(const TrainingOptions& options) {
  std::vector<std::string> out = options.special;
  if (out.empty()) {
    if (options.kind == TrainedKind::Bpe) return {kEndOfText};
    return {kBertSpecial.begin(), kBertSpecial.end()};
  }
  for (const std::string& token : out) {
    TESSERA_REQUIRE(
        !token.empty() && is_valid_utf8(token) && std::ranges::count(out, token) == 1,
        Config,
        fmt::format("the special token \"{}\" is empty, no UTF-8, or stands twice", token),
        "name every special token once");
  }
  for (const char* needed : {"[UNK]", "[CLS]", "[SEP]"}) {
    TESSERA_REQUIRE(options.kind == TrainedKind::Bpe || std::ranges::find(out, needed) != out.end(),
                    Config,
                    fmt::format("a WordPiece tokenizer has no special token {}", needed),
                    "add it to the special tokens, or name none: then they are BERT's five");
  }
  return out;
}

}  // namespace

TrainedTokenizer train_tokenizer(const std::vector<fs::path>& sources,
                                 const TrainingOptions& options) {
  const std::vector<std::string> special = special_of(options);
  const bool bytes = options.kind == TrainedKind::Bpe;
  const PieceCounts pieces = count_pieces(sources, options);
  TESSERA_REQUIRE(!pieces.empty(), Data, "there is no text to learn from", "name files with text");
  MergeOptions how{.vocab_size = options.vocab_size,
                   .min_frequency = options.min_frequency,
                   .special = special,
                   .poll = options.poll};
  if (bytes) {
    how.alphabet = characters_of_bytes();
  } else {
    how.inner_prefix = kInnerPrefix;
  }
  const LearntMerges learnt = learn_merges(pieces, how);
  const auto tokens = static_cast<std::int64_t>(learnt.tokens.size());
  TESSERA_REQUIRE(
      tokens <= options.vocab_size,
      Config,
      fmt::format("{} tokens are too few: special tokens and the characters of the text "
                  "are {}",
                  options.vocab_size,
                  tokens),
      fmt::format("ask for at least {}", tokens));
  const OrderedJson file =
      bytes ? bpe_file(learnt, special) : word_piece_file(learnt, special, options.lowercase);
  return {.tokenizer_json = file.dump(2) + "\n",
          .config_json = settings_of(special, options.kind).dump(2) + "\n",
          .tokens = tokens,
          .pieces = static_cast<std::int64_t>(pieces.size())};
}

}  // namespace tessera::data::tokenizers
