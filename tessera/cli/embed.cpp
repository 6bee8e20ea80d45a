// SPDX-License-Identifier: Apache-2.0
// tessera embed: computes the embedding of each line of a file.
#include "tessera/engine/embed.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/base/hub.h"
#include "tessera/base/output_file.h"
#include "tessera/base/text.h"
#include "tessera/cli/arguments.h"
#include "tessera/cli/checkpoint_path.h"
#include "tessera/cli/command.h"
#include "tessera/cli/output_progress.h"
#include "tessera/cli/ranks.h"
#include "tessera/cli/terminal.h"
#include "tessera/cli/text_lines.h"
#include "tessera/engine/open_model.h"
#include "tessera/interop/huggingface/sentence_transformers.h"
#include "tessera/interop/npy.h"
#include "tessera/text/tokenizers/characters.h"

namespace tessera::cli {
namespace {

struct EmbedFlags {
  std::string path, file, field = "text", weights = "fp32", out;
  std::optional<std::string> pooling, prompt;
  std::optional<std::int64_t> max_tokens;
  std::int64_t batch_tokens = engine::EmbedOptions().batch_tokens;
  bool normalize = false;
  RankFlags ranks;
  bool last = false;  ///< of a run, the newest checkpoint
  Common common;
};

bool parse_embed(EmbedFlags& words, const std::vector<std::string>& line) {
  Arguments arguments(
      "embed",
      "Writes the embedding of each line of a file: one hidden state of the model, or the mean of "
      "all. Folders of sentence-transformers define the pooling.",
      {"tessera embed ./all-MiniLM-L6-v2 lines.txt --out embeddings.npy",
       "tessera embed runs/my texts.jsonl --pooling mean --normalize --out embeddings.jsonl",
       "tessera embed ./qwen3 lines.txt --pooling last"});
  arguments.positional("MODEL", &words.path, "Run, checkpoint or Hugging Face folder");
  arguments.positional("FILE", &words.file, "Text file, one text per line, or .jsonl");
  arguments.option(
      "--field", &words.field, "Member of a .jsonl line that contains the text [text]");
  arguments.option(
      "--out", &words.out, "File for the embeddings, .jsonl or .npy [standard output]");
  arguments.option("--pooling",
                   &words.pooling,
                   "Pooling of hidden states: cls (first token), last, mean, or pooler (BERT's "
                   "pooler_output) [as in the folder; else last for decoders, mean for encoders]");
  arguments.flag("--normalize", words.normalize, "Normalize embeddings to length 1");
  arguments.option(
      "--max-tokens",
      &words.max_tokens,
      "Maximum number of tokens per text; longer texts are truncated [as in the folder]");
  arguments.option("--prompt", &words.prompt, "Prefix of every text [the folder's default prompt]");
  arguments.option("--batch-tokens",
                   &words.batch_tokens,
                   "Maximum number of tokens per batch, with padding [8192]");
  arguments.option("--weights", &words.weights, "fp32 or bf16 (with bf16 activations) [fp32]");
  words.ranks.declare(arguments);
  add_last(arguments, &words.last);
  arguments.common(words.common);
  return arguments.parse(line);
}

/// The reading and pooling of texts: by the options, else by the folder's settings.
struct EmbedPlan {
  std::string folder;
  std::optional<std::string> pooling;
  bool normalize = false, lower_case = false;
  std::string prompt;
  engine::EmbedOptions options;
};

EmbedPlan plan_of(const EmbedFlags& words) {
  constexpr std::int64_t kMost = 100'000'000;
  const auto require_count = [&](std::int64_t value, const char* option) {
    TESSERA_REQUIRE(value >= 1 && value <= kMost,
                    Config,
                    fmt::format("{} {}: expected 1 to {}", option, value, kMost),
                    "give a number of tokens");
  };
  EmbedPlan out{.folder = words.path};
  std::optional<std::int64_t> most;
  if (const auto said = interop::sentence_model_of(words.path)) {
    out.folder = said->folder.string();
    out.pooling = said->pooling;
    out.normalize = said->normalize;
    out.lower_case = said->lower_case;
    out.prompt = said->prompt;
    most = said->max_tokens;
  }
  if (!most) most = interop::tokenizer_limit_of(out.folder);
  if (words.max_tokens) require_count(*words.max_tokens, "--max-tokens");
  require_count(words.batch_tokens, "--batch-tokens");
  out.options.max_tokens = words.max_tokens.value_or(most.value_or(0));
  out.options.batch_tokens = words.batch_tokens;
  out.options.file = words.file;
  if (words.pooling) out.pooling = words.pooling;
  if (words.prompt) out.prompt = *words.prompt;
  out.normalize |= words.normalize;
  return out;
}

models::ObjectiveChoice objective_of(const EmbedPlan& plan) {
  models::ObjectiveChoice out{.name = "embedding"};
  if (plan.pooling) out.options["pooling"] = json::Value::string(*plan.pooling);
  out.options["normalize"] = json::Value::boolean(plan.normalize);
  return out;
}

std::string lowered(const std::string& text) {
  std::vector<char32_t> characters;
  for (const char32_t c : text::tokenizers::characters_of(text))
    text::tokenizers::append_lower(characters, c);
  std::string out;
  for (const char32_t c : characters)
    text::append_utf8(out, c);
  return out;
}

void prepare_texts(std::vector<std::string>& texts, const EmbedPlan& plan) {
  for (std::string& text : texts) {
    text.insert(0, plan.prompt);
    if (plan.lower_case) text = lowered(text);
  }
}

/// The output for embeddings.
class EmbeddingOutput {
 public:
  /// `file`: that of the texts, for messages.
  EmbeddingOutput(const std::string& path,
                  std::string file,
                  std::int64_t texts,
                  std::int64_t channels,
                  Terminal& terminal)
      : path_(path), file_(std::move(file)), terminal_(terminal) {
    if (path.ends_with(".npy")) {
      matrix_ = std::make_unique<interop::NpyWriter>(path, texts, channels);
    } else if (!path.empty()) {
      lines_.open(path);
    }
  }

  void add(std::int64_t text, std::span<const float> embedding) {
    TESSERA_REQUIRE(std::ranges::all_of(embedding, [](float x) { return std::isfinite(x); }),
                    Data,
                    fmt::format("{}:{}: the embedding is not finite", file_, text + 1),
                    "check the model's weights");
    if (matrix_) return matrix_->add(embedding);
    const std::string line = fmt::format("{{\"embedding\": [{}]}}", fmt::join(embedding, ", "));
    if (path_.empty()) return terminal_.data(line);
    lines_.write(line + '\n');
  }

  void close() {
    if (matrix_) return matrix_->close();
    if (path_.empty()) return;
    lines_.close();
  }

 private:
  std::string path_, file_;
  Terminal& terminal_;
  std::unique_ptr<interop::NpyWriter> matrix_;
  OutputFile lines_;
};

void embed_on(engine::OpenModel& model,
              const EmbedFlags& words,
              const EmbedPlan& plan,
              const std::vector<std::string>& texts,
              bool is_leader) {
  Terminal terminal;
  std::unique_ptr<EmbeddingOutput> out;
  const std::int64_t channels = model.shape.trunk.output.hidden_size, all = std::ssize(texts);
  if (is_leader)
    out = std::make_unique<EmbeddingOutput>(words.out, words.file, all, channels, terminal);
  const bool tells = is_leader && !words.out.empty() && !words.common.quiet;
  const engine::EmbedStats stats = engine::embed(
      *model.executor,
      *model.tokenizer,
      model.shape,
      texts,
      plan.options,
      [&](std::int64_t text, std::span<const float> embedding) {
        if (out) out->add(text, embedding);
      },
      [&](std::int64_t texts_done) {
        if (tells) {
          terminal.live(fmt::format("{} of {} texts ({}%)",
                                    text::with_commas(texts_done),
                                    text::with_commas(all),
                                    100 * texts_done / all));
        }
      });
  if (!out) return;
  out->close();
  if (!tells) return;
  terminal.line(fmt::format(
      "wrote {} embeddings of {} numbers to {} ({} tokens{})",
      text::with_commas(stats.texts),
      channels,
      words.out,
      text::with_commas(stats.tokens),
      stats.cut > 0 ? fmt::format("; {} texts lost their end", text::with_commas(stats.cut)) : ""));
}

int embed(const std::vector<std::string>& line) {
  EmbedFlags words;
  if (!parse_embed(words, line)) return kExitOk;
  words.path = hub::model_path(words.path).string();
  const engine::ReadAs as = engine::read_as_from_name(words.weights);
  TESSERA_REQUIRE(as != engine::ReadAs::Int8,
                  Unsupported,
                  "--weights int8: matrices in eight bits are for making text",
                  "use fp32 or bf16");
  const EmbedPlan plan = plan_of(words);
  require_other_file(words.file, words.out);
  std::vector<std::string> texts = read_text_lines(words.file, words.field);
  prepare_texts(texts, plan);
  std::unique_ptr<engine::OpenModel> model =
      engine::find_model(model_at(plan.folder, words.last, words.common));
  TESSERA_REQUIRE(model->shape.trunk.output.modality == models::Modality::Text,
                  Unsupported,
                  words.path + " reads images, and tessera embed reads texts",
                  "name a language model");
  engine::require_tokens(*model->tokenizer, texts, plan.options);
  engine::set_objective(*model, objective_of(plan));
  return with_model(
      std::move(model), words.ranks, as, [&](engine::OpenModel& loaded, bool is_leader) {
        embed_on(loaded, words, plan, texts, is_leader);
      });
}

TESSERA_COMMAND("embed", "write the embedding of each line of a file", embed);

}  // namespace
}  // namespace tessera::cli
