// SPDX-License-Identifier: Apache-2.0
// tessera prepare-corpus: what TencentPretrain's preprocess.py does before a pretraining.
#include <cstdio>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/cli/arguments.h"
#include "tessera/cli/command.h"
#include "tessera/config/json.h"
#include "tessera/interop/tencentpretrain/corpus.h"

namespace tessera::cli {
namespace {

namespace tp = interop::tencentpretrain;

int prepare_corpus(const std::vector<std::string>& line) {
  std::string out, settings;
  bool json_lines = false;
  Common common;
  Arguments arguments(
      "prepare-corpus",
      "Prepares a text for a pretraining with TencentPretrain's options: tessera "
      "python3 preprocess.py calls it. The text is tokenized when a training "
      "starts, and cached.",
      {"tessera python3 preprocess.py --corpus_path text.txt --vocab_path vocab.txt "
       "--dataset_path dataset.pt --data_processor lm"});
  arguments.option("--out", &out, "File to write, which pretrain.py reads");
  arguments.option("--settings", &settings, "The options given to preprocess.py, as JSON");
  arguments.flag("--json-lines", json_lines, "A line is an object with a \"text\"");
  arguments.common(common);
  if (!arguments.parse(line)) return kExitOk;
  TESSERA_REQUIRE(!out.empty() && !settings.empty(),
                  Config,
                  "tessera prepare-corpus: --out and --settings are missing",
                  "tessera python3 preprocess.py --corpus_path TEXT ...");
  const tp::Corpus corpus = tp::corpus_of(json::parse_strict(settings, "--settings"), "--settings");
  const auto count = tp::write_corpus(corpus, out, json_lines);
  if (common.quiet) return kExitOk;
  std::printf("%s: %s; tokenized when a training starts\n",
              out.c_str(),
              count ? fmt::format("{} records in {}.jsonl", text::with_commas(*count), out).c_str()
                    : fmt::format("the text {}", corpus.data).c_str());
  return kExitOk;
}

TESSERA_COMMAND("prepare-corpus", "", prepare_corpus);

}  // namespace
}  // namespace tessera::cli
