// SPDX-License-Identifier: Apache-2.0
// tessera tokenize: converts text to a .bin/.idx pair.
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/cli/arguments.h"
#include "tessera/cli/command.h"
#include "tessera/cli/terminal.h"
#include "tessera/config/json.h"
#include "tessera/data/token_file.h"
#include "tessera/launch/early_stop.h"
#include "tessera/text/tokenizer.h"

namespace tessera::cli {
namespace {

struct TokenizeFlags {
  std::vector<std::string> sources;
  std::string out;
  text::TokenizerOptions tokenizer;
  std::string folder;
  data::TokenizeOptions how;
  std::int64_t threads = 0;
  Common common;
};

bool parse(TokenizeFlags& words, const std::vector<std::string>& line) {
  Arguments arguments(
      "tokenize",
      "Converts text to PREFIX.bin and PREFIX.idx, which can be used as data.train. Training does "
      "this by itself and caches the result; use this command to do it in advance.",
      {"tessera tokenize book.txt --out book",
       "tessera tokenize notes/ more.jsonl --tokenizer gpt2 --out corpus",
       "tessera tokenize data.jsonl --text-field content --folder my-gpt2 --out corpus"});
  arguments.positional(
      "SOURCES", &words.sources, "A .txt, a .jsonl, a folder of them, or several of these");
  arguments.option("--out", &words.out, "Prefix of the two files");
  arguments.option("--tokenizer", &words.tokenizer.type, "byte or gpt2 [byte]");
  arguments.option(
      "--vocab", &words.tokenizer.vocab, "vocab.json with --merges, or a tokenizer.json");
  arguments.option("--merges", &words.tokenizer.merges, "merges.txt, with a vocab.json");
  arguments.option("--folder", &words.folder, "Hugging Face folder with the tokenizer");
  arguments.option("--text-field,--text_field",
                   &words.how.text_field,
                   "Field of a .jsonl line that contains the text [text]");
  arguments.option(
      "--invalid-utf8,--invalid_utf8", &words.how.invalid_utf8, "refuse or replace [refuse]");
  arguments.option("--threads", &words.threads, "Threads; 0 uses all cores [0]");
  arguments.common(words.common, /*has_json=*/true);
  return arguments.parse(line);
}

void report(const TokenizeFlags& words, const data::TokenizeStats& stats, double seconds) {
  if (words.common.json) {
    const json::Value out =
        json::Value::object({{"documents", json::Value::integer(stats.documents)},
                             {"tokens", json::Value::integer(stats.tokens)},
                             {"bytes", json::Value::integer(stats.bytes)},
                             {"skipped_empty", json::Value::integer(stats.skipped_empty)},
                             {"replaced_utf8", json::Value::integer(stats.replaced_utf8)}});
    std::printf("%s\n", out.dump().c_str());
    return;
  }
  if (words.common.quiet) return;
  std::printf("%s documents, %s, %s tokens in %s: %s.bin, %s.idx\n",
              text::with_commas(stats.documents).c_str(),
              text::bytes(static_cast<std::uint64_t>(stats.bytes)).c_str(),
              text::with_commas(stats.tokens).c_str(),
              text::duration(seconds).c_str(),
              words.out.c_str(),
              words.out.c_str());
  if (stats.skipped_empty > 0)
    std::printf("%s empty documents were skipped\n",
                text::with_commas(stats.skipped_empty).c_str());
  if (stats.replaced_utf8 > 0) {
    std::printf("%s invalid byte sequences were replaced\n",
                text::with_commas(stats.replaced_utf8).c_str());
  }
}

int tokenize(const std::vector<std::string>& line) {
  TokenizeFlags words;
  if (!parse(words, line)) return kExitOk;
  TESSERA_REQUIRE(
      !words.out.empty(), Config, "tessera tokenize: --out is missing", "add --out PREFIX");
  TESSERA_REQUIRE(words.threads >= 0 && words.threads <= 4096,
                  Config,
                  fmt::format("--threads {}: expected 0 to 4096", words.threads),
                  "0 uses all cores");
  words.how.threads = static_cast<int>(words.threads);
  Terminal terminal;
  const launch::EarlyStop early;
  words.how.poll = [&early] { early.check(); };
  if (!words.common.quiet && !words.common.json) {
    words.how.progress = [&terminal, last = 0.0](std::int64_t done, std::int64_t all) mutable {
      if (now_s() - last < 0.1) return;
      last = now_s();
      terminal.live(fmt::format("tokenizing: {} of {}",
                                text::bytes(static_cast<std::uint64_t>(done)),
                                text::bytes(static_cast<std::uint64_t>(all))));
    };
  }
  const text::TokenizerPtr tokenizer = words.folder.empty()
                                           ? text::make_tokenizer(words.tokenizer)
                                           : text::tokenizer_from_folder(words.folder);
  const std::vector<std::filesystem::path> sources(words.sources.begin(), words.sources.end());
  const double begin = now_s();
  const data::TokenizeStats stats = data::tokenize(sources, *tokenizer, words.out, words.how);
  terminal.live("");
  report(words, stats, now_s() - begin);
  return kExitOk;
}

TESSERA_COMMAND("tokenize", "convert text to a .bin/.idx pair of tokens", tokenize);

}  // namespace
}  // namespace tessera::cli
