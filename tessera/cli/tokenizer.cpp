// SPDX-License-Identifier: Apache-2.0
// tessera tokenizer train: trains a tokenizer on text; other actions are in tokenizer_use.h.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/cli/arguments.h"
#include "tessera/cli/command.h"
#include "tessera/cli/tokenizer_use.h"
#include "tessera/config/json.h"
#include "tessera/data/tokenizer_training.h"
#include "tessera/launch/early_stop.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;
using text::tokenizers::TrainedKind;

struct TrainerFlags {
  std::string action, out, type = "bpe";
  std::vector<std::string> sources;
  std::int64_t threads = 0;
  std::optional<std::int64_t> min_frequency;
  bool cased = false;
  text::tokenizers::TrainingOptions how;
  Common common;
};

bool parse(TrainerFlags& words, const std::vector<std::string>& line) {
  Arguments arguments(
      "tokenizer",
      "Learns a tokenizer from text and writes a folder that `tokenizer.type` file reads; or uses "
      "that of a model (tessera tokenizer encode --help).",
      {"tessera tokenizer train book.txt --vocab-size 8000 --out my-tokenizer",
       "tessera tokenizer train notes/ more.jsonl --type wordpiece --out my-bert",
       "tessera tokenizer encode runs/my texts.jsonl --out ids.jsonl"});
  arguments.positional("ACTION", &words.action, "train; or encode, decode, describe");
  arguments.positional(
      "SOURCES", &words.sources, "A .txt, a .jsonl, a folder of them, or several of these");
  arguments.option("--out", &words.out, "Folder for tokenizer.json and tokenizer_config.json");
  arguments.option("--type", &words.type, "bpe (over bytes), wordpiece or unigram [bpe]");
  arguments.option(
      "--vocab-size,--vocab_size", &words.how.vocab_size, "Maximum number of tokens [32000]");
  arguments.option("--min-frequency,--min_frequency",
                   &words.min_frequency,
                   "Minimum frequency of a merged pair, with bpe and wordpiece [2]");
  arguments.option("--special",
                   &words.how.special,
                   "A special token; the first one ends texts; repeatable "
                   "[<|endoftext|>, or the usual ones of the type]");
  arguments.flag("--cased", words.cased, "Keep capital letters and accents, with wordpiece");
  arguments.option("--text-field,--text_field",
                   &words.how.text_field,
                   "Field of a .jsonl line that contains the text [text]");
  arguments.option("--threads", &words.threads, "Threads; 0 uses all cores [0]");
  arguments.common(words.common, /*has_json=*/true);
  return arguments.parse(line);
}

void check(TrainerFlags& words) {
  TESSERA_REQUIRE(words.action == "train",
                  Config,
                  "unknown: tessera tokenizer " + words.action,
                  "tessera tokenizer train SOURCES --out FOLDER, or encode, decode, describe");
  TESSERA_REQUIRE(
      !words.out.empty(), Config, "tessera tokenizer: --out is missing", "add --out FOLDER");
  static const std::vector<std::string> types = {"bpe", "wordpiece", "unigram"};
  const auto type = std::ranges::find(types, words.type);
  TESSERA_REQUIRE(type != types.end(),
                  Config,
                  fmt::format("--type {}: expected bpe, wordpiece or unigram", words.type),
                  text::suggestion(words.type, types));
  words.how.kind = static_cast<TrainedKind>(type - types.begin());
  TESSERA_REQUIRE(words.threads >= 0 && words.threads <= 4096,
                  Config,
                  fmt::format("--threads {}: expected 0 to 4096", words.threads),
                  "0 uses all cores");
  constexpr std::int64_t kMostTokens = (std::int64_t{1} << 24) - 1;
  TESSERA_REQUIRE(
      words.how.vocab_size >= 1 && words.how.vocab_size <= kMostTokens,
      Config,
      fmt::format("--vocab-size {}: expected 1 to {}", words.how.vocab_size, kMostTokens),
      "32000 is usual");
  TESSERA_REQUIRE(words.min_frequency.value_or(2) >= 1,
                  Config,
                  fmt::format("--min-frequency {}: expected 1 or more", *words.min_frequency),
                  "2 is usual");
  TESSERA_REQUIRE(!words.min_frequency || words.how.kind != TrainedKind::Unigram,
                  Config,
                  "--min-frequency has no effect with unigram, which merges nothing",
                  "remove it");
  words.how.min_frequency = words.min_frequency.value_or(words.how.min_frequency);
  TESSERA_REQUIRE(!words.cased || words.how.kind == TrainedKind::WordPiece,
                  Config,
                  "--cased belongs to wordpiece: bpe and unigram keep capital letters",
                  "remove it");
  words.how.lowercase = !words.cased;
  words.how.threads = words.threads > 0
                          ? static_cast<int>(words.threads)
                          : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

int tokenizer(const std::vector<std::string>& line) {
  if (uses_tokenizer(line)) return use_tokenizer(line);
  TrainerFlags words;
  if (!parse(words, line)) return kExitOk;
  check(words);
  const launch::EarlyStop early;
  words.how.poll = [&early] { early.check(); };
  const double begin = now_s();
  const std::vector<fs::path> sources(words.sources.begin(), words.sources.end());
  const auto trained = data::train_tokenizer(sources, words.how);
  fs::create_directories(words.out);
  files::write_atomic(fs::path(words.out) / "tokenizer.json", trained.tokenizer_json);
  files::write_atomic(fs::path(words.out) / "tokenizer_config.json", trained.config_json);
  if (words.common.json) {
    const json::Value out = json::Value::object({{"tokens", json::Value::integer(trained.tokens)},
                                                 {"pieces", json::Value::integer(trained.pieces)}});
    std::printf("%s\n", out.dump().c_str());
  } else if (!words.common.quiet) {
    std::printf("%s tokens from %s different pieces of text in %s: %s\n",
                text::with_commas(trained.tokens).c_str(),
                text::with_commas(trained.pieces).c_str(),
                text::duration(now_s() - begin).c_str(),
                words.out.c_str());
  }
  return kExitOk;
}

TESSERA_COMMAND("tokenizer", "learn a tokenizer from text, or use one", tokenizer);

}  // namespace
}  // namespace tessera::cli
