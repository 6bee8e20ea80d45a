// SPDX-License-Identifier: Apache-2.0
// TencentPretrain's scripts: preprocess.py, pretrain.py, finetune/, inference/ and scripts/. The
// keys of a model's configuration have the names of the options, which come before them.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <xxhash.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/interop/command_meaning.h"
#include "tessera/interop/huggingface/trainer_rules.h"
#include "tessera/interop/option_table.h"
#include "tessera/interop/tencentpretrain/corpus.h"
#include "tessera/interop/tencentpretrain/model_rules.h"

namespace tessera::interop {
namespace {

namespace fs = std::filesystem;
namespace tp = tencentpretrain;
using Setting = ForeignFlags::Setting;

constexpr std::string_view kRows =
#include "tessera/interop/tencentpretrain/options.inc"
    ;
const bool kTables = add_option_tables("tencentpretrain", kRows);

json::Value word_value(std::string_view word) {
  return json::Value::string(std::string(word));
}

json::Value whole(double value) {
  return json::Value::integer(static_cast<std::int64_t>(value));
}

// Its AdamW has no bias correction, and its Adafactor a fixed rate.
void set_optimizer(Meaning& meaning) {
  const std::string name = text::lower(meaning.text("@optimizer", "adamw"));
  const Setting* const from = meaning.find("@optimizer");
  if (name == "adamw") {
    meaning.set("optimizer.type", word_value("AdamW"), from);
    meaning.set("optimizer.betas",
                json::Value::array({json::Value::number(0.9), json::Value::number(0.999)}));
    meaning.set("optimizer.eps", json::Value::number(1e-6));
    meaning.set("optimizer.weight_decay", json::Value::number(0.01));
    meaning.set("optimizer.bias_correction", json::Value::boolean(false));
  } else if (name == "adafactor") {
    meaning.set("optimizer.type", word_value("Adafactor"), from);
    meaning.set("optimizer.weight_decay", json::Value::number(0.01));
    meaning.set("optimizer.scale_parameter", json::Value::boolean(false));
    meaning.set("optimizer.relative_step", json::Value::boolean(false));
  } else {
    meaning.refuse(fmt::format("{} {} is not supported", from->flag, name),
                   "use adamw or adafactor");
  }
}

// `steps`: updates of the schedule, where the command says them. The warm-up is a share of them.
void set_schedule(Meaning& meaning, std::optional<double> steps, bool longer) {
  const std::string name = text::lower(meaning.text("@scheduler", "linear"));
  const Setting* const from = meaning.find("@scheduler");
  static const std::vector<std::string> known = {"linear",
                                                 "cosine",
                                                 "cosine_with_restarts",
                                                 "polynomial",
                                                 "constant",
                                                 "constant_with_warmup",
                                                 "inverse_sqrt"};
  if (std::ranges::find(known, name) == known.end()) {
    meaning.refuse(fmt::format("{} {} is not supported", from->flag, name),
                   text::suggestion(name, known));
    return;
  }
  if (meaning.value("scheduler") != nullptr) meaning.drop("scheduler");
  meaning.set("scheduler.type", word_value(name), from);
  if (name == "constant") return;
  const Setting* const warmup = meaning.find("@warmup");
  const double share = warmup->value.as_double();
  if (!(share >= 0) || share > 1) {
    meaning.refuse(fmt::format("{} {}: expected a share of all steps", warmup->flag, share), "0.1");
  } else if (steps) {
    meaning.set("scheduler.num_warmup_steps", whole(std::ceil(*steps * share)), warmup);
    const bool falls = name != "constant_with_warmup" && name != "inverse_sqrt";
    if (longer && falls)
      meaning.set("scheduler.num_training_steps", whole(*steps), meaning.find("@steps"));
  } else if (share > 0) {
    meaning.set("scheduler.warmup_ratio", warmup->value, warmup);
  }
}

void set_ranks(Meaning& meaning) {
  const auto world = meaning.number("@world");
  const std::vector<std::string> here = meaning.texts("@gpu_ranks");
  if (meaning.ranks) return;
  if (!here.empty()) {
    meaning.ranks = static_cast<std::int64_t>(here.size());
    if (world && *world > static_cast<double>(here.size()))
      meaning.refuse(fmt::format("{} {}, of which {} are here: several hosts",
                                 meaning.find("@world")->flag,
                                 *world,
                                 here.size()),
                     "start it on every host with torchrun --nnodes");
  } else if (world && *world > 1) {
    meaning.ranks = static_cast<std::int64_t>(*world);
  }
}

void set_adapter(Meaning& meaning) {
  if (!meaning.is_on("@lora")) return;
  meaning.set("adapter.type", word_value("lora"), meaning.find("@lora"));
  meaning.copy("adapter.r", meaning.find("@lora_r"));
  meaning.copy("adapter.alpha", meaning.find("@lora_alpha"));
  meaning.copy("adapter.dropout", meaning.find("@lora_dropout"));
  // Queries and values.
  meaning.set("adapter.targets",
              json::Value::array({word_value("linear_layers.0"), word_value("linear_layers.2")}),
              meaning.find("@lora"));
}

void set_common(Meaning& meaning) {
  set_optimizer(meaning);
  set_ranks(meaning);
  set_adapter(meaning);
  if (meaning.is_on("@zero3") && meaning.flags.config.empty())
    meaning.set("zero_optimization.stage", json::Value::integer(3), meaning.find("@zero3"));
  if (meaning.value("fp16.enabled") != nullptr && meaning.flags.config.empty())
    meaning.set("fp16.scaler", word_value("megatron"));
  if (const Setting* const from = meaning.given("@resume"))
    meaning.own_words.insert(meaning.own_words.end(), {"--resume", from->value.as_string()});
}

// ---- preprocess.py ----

void preprocess(Meaning& meaning) {
  const Setting* const corpus = meaning.given("@corpus");
  const Setting* const processor = meaning.find("@processor");
  if (corpus == nullptr) {
    meaning.refuse(fmt::format("{} without a text", meaning.program), "add --corpus_path");
    return;
  }
  std::error_code ignored;
  if (!fs::is_regular_file(corpus->value.as_string(), ignored))
    meaning.refuse(
        fmt::format("{} {}: there is no such file", corpus->flag, corpus->value.as_string()),
        "name a file of text");
  const tp::Processor* const known = tp::find_processor(processor->value.as_string());
  if (known == nullptr)
    meaning.refuse(
        fmt::format("{} {} is not supported", processor->flag, processor->value.as_string()),
        text::suggestion(processor->value.as_string(), tp::processor_names()));
  const bool takes_json = known == nullptr || known->lines == tp::Lines::Documents ||
                          known->lines == tp::Lines::Records;
  if (meaning.is_on("@json") && !takes_json)
    meaning.refuse(fmt::format("--json_format_corpus is not supported with {} {}",
                               processor->flag,
                               processor->value.as_string()),
                   "write the corpus as lines of text");
  if (meaning.is_on("@spans"))
    meaning.refuse("--span_masking is not supported", "use --whole_word_masking");
  tp::set_tokenizer(meaning);
  if (!meaning.problems.empty()) return;
  const auto number = [&](const char* key) {
    return static_cast<std::int64_t>(meaning.number(key).value_or(0));
  };
  tp::Corpus out{.processor = processor->value.as_string(),
                 .data = corpus->value.as_string(),
                 .sequence_length = number("@length"),
                 .target_length = number("@target_length"),
                 .copies = number("@copies"),
                 .short_pairs = meaning.number("@short").value_or(0.1),
                 .dynamic = meaning.is_on("@dynamic"),
                 .whole_words = meaning.is_on("@whole_words"),
                 .tokenizer = {}};
  if (const json::Value* const tokenizer = meaning.value("tokenizer")) out.tokenizer = *tokenizer;
  meaning.command = "prepare-corpus";
  meaning.words = {"--out", meaning.text("@dataset"), "--settings", tp::to_json(out).dump()};
  if (meaning.is_on("@json")) meaning.words.emplace_back("--json-lines");
}

// ---- pretrain.py ----

// Masks are drawn once for each copy of a document, unless they are drawn at every reading.
void set_masks(Meaning& meaning, const tp::Corpus& corpus, const tp::Processor& processor) {
  const bool pairs = processor.lines == tp::Lines::Sentences;
  if (pairs) {
    meaning.set("task.params.pair_copies", json::Value::integer(corpus.copies));
    meaning.set("task.params.short_pairs", json::Value::number(corpus.short_pairs));
  }
  const bool dynamic = corpus.dynamic || (!pairs && corpus.copies > 1);
  meaning.set("task.params.dynamic", json::Value::boolean(dynamic));
  if (corpus.whole_words || meaning.is_on("@whole_words"))
    meaning.set("task.params.whole_words", json::Value::boolean(true));
}

// The task and the data that preprocess.py prepared.
void set_corpus(Meaning& meaning) {
  const Setting* const dataset = meaning.find("@dataset");
  const tp::Corpus corpus = tp::read_corpus(dataset->value.as_string());
  const tp::Processor* const processor = tp::find_processor(corpus.processor);
  const Setting* const asked = meaning.given("@processor");
  if (processor == nullptr || (asked != nullptr && asked->value.as_string() != corpus.processor)) {
    meaning.refuse(fmt::format("{} was prepared with --data_processor {}, not {}",
                               dataset->value.as_string(),
                               corpus.processor,
                               asked == nullptr ? "bert" : asked->value.as_string()),
                   fmt::format("add --data_processor {}", corpus.processor));
    return;
  }
  const json::Value learned = json::parse(processor->task, corpus.processor);
  for (const auto& [key, value] : learned.members()) {
    if (key == "type") {
      meaning.set("task.type", value, dataset);
      continue;
    }
    for (const auto& [name, param] : value.members())
      meaning.set("task.params." + name, param, dataset);
  }
  meaning.set("data.train", json::Value::string(corpus.data), dataset);
  meaning.set("data.sequence_length", json::Value::integer(corpus.sequence_length), dataset);
  const std::string task = meaning.value("task.type")->as_string();
  if (task == "masked_lm") set_masks(meaning, corpus, *processor);
  if (task == "seq2seq")
    meaning.set("task.params.target_length", json::Value::integer(corpus.target_length), dataset);
  if (task == "classify" && huggingface::has_field(meaning, "text_b"))
    meaning.set("task.params.text_pair_field", word_value("text_b"), dataset);
  if (meaning.given("@vocab") == nullptr && meaning.given("@spm") == nullptr &&
      corpus.tokenizer.is_object()) {
    for (const auto& [key, value] : corpus.tokenizer.members())
      meaning.set("tokenizer." + key, value, dataset);
  } else {
    tp::set_tokenizer(meaning);
  }
}

void pretrain(Meaning& meaning) {
  if (meaning.value("run.dir") == nullptr)
    meaning.refuse(fmt::format("{} without a folder", meaning.program), "add --output_model_path");
  if (meaning.is_on("@spans"))
    meaning.refuse("--span_masking is not supported", "use --whole_word_masking");
  set_corpus(meaning);
  if (!meaning.problems.empty()) return;
  tp::set_model(meaning, "");
  set_common(meaning);
  // Its steps are micro-batches, and its schedule is as long as if each were an update.
  const double steps = meaning.number("@steps").value_or(0);
  const double accumulation =
      std::max(1.0, meaning.number("gradient_accumulation_steps").value_or(1));
  if (steps < accumulation) {
    meaning.refuse(fmt::format("{} {}: no update", meaning.find("@steps")->flag, steps),
                   "give more steps");
    return;
  }
  set_schedule(meaning, steps, accumulation > 1);
  const auto updates = [&](const char* name) {
    return whole(std::max(1.0, std::floor(meaning.number(name).value_or(1) / accumulation)));
  };
  meaning.set("trainer.max_steps", updates("@steps"), meaning.find("@steps"));
  meaning.set("checkpoint.every", updates("@save_interval"), meaning.find("@save_interval"));
  meaning.set("steps_per_print", updates("@report"), meaning.find("@report"));
}

// ---- finetune/ ----

// The scripts evaluate after every epoch and keep the weights of the best evaluation.
void finetune(Meaning& meaning, std::string_view target, const char* best) {
  if (meaning.value("data.train") == nullptr)
    meaning.refuse(fmt::format("{} without data", meaning.program), "add --train_path");
  if (meaning.value("data.validation") == nullptr)
    meaning.refuse(fmt::format("{} without data to evaluate", meaning.program), "add --dev_path");
  tp::set_tokenizer(meaning);
  tp::set_model(meaning, target);
  if (meaning.value("model.from") != nullptr) meaning.drop("tokenizer");  // the model has it
  set_common(meaning);
  set_schedule(meaning, std::nullopt, false);
  meaning.set("eval.every", word_value("epoch"));
  meaning.set("eval.best", word_value(best));
  meaning.set("checkpoint.every", json::Value::integer(0));
  meaning.set("checkpoint.best", json::Value::boolean(true));
}

void classifier(Meaning& meaning) {
  if (meaning.value("data.train") != nullptr && huggingface::has_field(meaning, "text_b"))
    meaning.set("task.params.text_pair_field", word_value("text_b"), meaning.given("data.train"));
  finetune(meaning, "cls", "accuracy");
}

// {"O": 0, "B-PER": 1}: the tags in the order of their numbers.
void tagger(Meaning& meaning) {
  const Setting* const file = meaning.given("@label_ids");
  if (file == nullptr) {
    meaning.refuse(fmt::format("{} without the tags", meaning.program), "add --label2id_path");
    return;
  }
  const std::string& path = file->value.as_string();
  const json::Value ids = json::parse_strict(files::read(path), path);
  const std::size_t count = ids.is_object() ? ids.members().size() : 0;
  std::vector<std::string> names(count);
  bool good = count > 0;
  for (std::size_t i = 0; i < count; ++i) {
    const auto& [name, id] = ids.members()[i];
    const auto number = id.is_number() ? id.as_integer() : std::nullopt;
    good = good && number && *number >= 0 && static_cast<std::size_t>(*number) < count &&
           names[static_cast<std::size_t>(*number)].empty();
    if (good) names[static_cast<std::size_t>(*number)] = name;
  }
  if (!good) {
    meaning.refuse(
        fmt::format("{} {}: expected the tags with their numbers from 0", file->flag, path),
        "{\"O\": 0, \"B-PER\": 1}");
    return;
  }
  json::Value list = json::Value::array();
  for (const std::string& name : names)
    list.push_back(json::Value::string(name));
  meaning.set("task.params.labels", std::move(list), file);
  finetune(meaning, "", "f1");
}

void text2text(Meaning& meaning) {
  if (meaning.value("task.params.target_length") == nullptr)
    meaning.set("task.params.target_length", json::Value::integer(32));
  finetune(meaning, "lm", "loss");
}

// ---- inference/ and scripts/ ----

void predict(Meaning& meaning) {
  const Setting *const weights = meaning.given("@model"), *const test = meaning.given("@test"),
                       *const out = meaning.given("@prediction");
  if (weights == nullptr)
    meaning.refuse(fmt::format("{} without a model", meaning.program), "add --load_model_path");
  if (test == nullptr)
    meaning.refuse(fmt::format("{} without data", meaning.program), "add --test_path");
  if (meaning.is_on("@logits"))
    meaning.refuse(fmt::format("{} is not supported", meaning.find("@logits")->flag),
                   "use --output_prob: each prediction has the probability of every class");
  if (!meaning.problems.empty()) return;
  const auto classes = static_cast<std::int64_t>(meaning.number("@labels").value_or(0));
  const std::string folder =
      tp::model_folder(meaning, *weights, "cls", std::max<std::int64_t>(classes, 1));
  if (!meaning.problems.empty()) return;
  meaning.command = "predict";
  meaning.words = {folder, test->value.as_string()};
  if (out != nullptr) meaning.words.insert(meaning.words.end(), {"--out", out->value.as_string()});
  for (const auto& [name, option] :
       {std::pair("@length", "--length"), std::pair("@batch", "--batch")}) {
    if (const Setting* const setting = meaning.find(name))
      meaning.words.insert(meaning.words.end(), {option, setting->value.dump()});
  }
  // A run knows the columns of its data; a file of weights does not.
  std::error_code ignored;
  if (fs::is_regular_file(weights->value.as_string(), ignored))
    meaning.words.insert(meaning.words.end(), {"--map", R"({"text": "text_a"})"});
}

// The first line of a text is the prompt, as a file for `tessera generate`.
std::string write_prompt(Meaning& meaning, const Setting& test) {
  const std::string& path = test.value.as_string();
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) {
    meaning.refuse(fmt::format("{} {}: there is no such file", test.flag, path),
                   "name a file whose first line is the beginning of the text");
    return "";
  }
  const std::string text = files::read(path);
  const std::string line(text::trim(text.substr(0, text.find('\n'))));
  const std::string content =
      json::Value::object({{"prompt", json::Value::string(line)}}).dump() + "\n";
  const fs::path folder = files::cache_dir() / "tencentpretrain";
  const fs::path out =
      folder / fmt::format("{:016x}.jsonl", XXH3_64bits(content.data(), content.size()));
  fs::create_directories(folder, ignored);
  files::write_atomic(out, content);
  return out.string();
}

void generate(Meaning& meaning) {
  const Setting *const weights = meaning.given("@model"), *const test = meaning.given("@test"),
                       *const out = meaning.given("@prediction");
  if (weights == nullptr)
    meaning.refuse(fmt::format("{} without a model", meaning.program), "add --load_model_path");
  if (test == nullptr || out == nullptr)
    meaning.refuse(fmt::format("{} without its files", meaning.program),
                   "add --test_path and --prediction_path");
  if (!meaning.problems.empty()) return;
  const std::string prompts = write_prompt(meaning, *test);
  const std::string folder = tp::model_folder(meaning, *weights, "lm", 0);
  if (!meaning.problems.empty()) return;
  const bool writes = !meaning.text("model.decoder").empty();
  const Setting* const length = meaning.find(writes ? "@target_length" : "@length");
  meaning.command = "generate";
  meaning.words = {folder,
                   "--prompts",
                   prompts,
                   "--out",
                   out->value.as_string(),
                   "--max-new-tokens",
                   length == nullptr ? "128" : length->value.dump(),
                   "--temperature",
                   meaning.text("@temperature")};
  const double top_k = meaning.number("@top_k").value_or(0),
               top_p = meaning.number("@top_p").value_or(0);
  meaning.words.insert(meaning.words.end(), {"--top-k", fmt::format("{}", top_k)});
  if (top_p > 0) meaning.words.insert(meaning.words.end(), {"--top-p", fmt::format("{}", top_p)});
  meaning.note("each line of the output is an object with \"prompt\" and \"text\"");
}

std::vector<std::string_view> tables(std::string_view own) {
  return {own, "tencentpretrain/common", "tencentpretrain/model"};
}

const std::vector<std::string_view> kOfText = {
    "vocab_path", "spm_model_path", "config_path", "pretrained_model_path", "load_model_path"};

/// A script of the folder finetune/, with what all of them have.
Program fine_tuning(Program script) {
  script.tables = tables("tencentpretrain/finetune");
  script.folders = {"TencentPretrain", "tencentpretrain", "finetune"};
  script.file = "config_path";
  return script;
}

#define TESSERA_TENCENT(task)                                                       \
  R"({"task": )" task R"(, "data": {"drop_last": false}, "gradient_clipping": 0, )" \
  R"("eval": {"batches": 1000000000}})"

const bool kPrograms = add_programs({
    {.title = "TencentPretrain's preprocess.py",
     .names = {"preprocess.py"},
     .folders = {"TencentPretrain", "tencentpretrain"},
     .marks = {"corpus_path", "data_processor"},
     .tables = tables("tencentpretrain/preprocess"),
     .rules = preprocess},
    {.title = "TencentPretrain's pretrain.py",
     .names = {"pretrain.py"},
     .folders = {"TencentPretrain", "tencentpretrain"},
     .marks = {"data_processor", "config_path", "output_model_path"},
     .tables = tables("tencentpretrain/pretrain"),
     .always = R"({"gradient_clipping": 0})",
     .rules = pretrain,
     .file = "config_path"},
    fine_tuning(
        {.title = "TencentPretrain's run_classifier.py",
         .names = {"run_classifier.py", "run_classifier_deepspeed.py"},
         .marks = kOfText,
         .always = TESSERA_TENCENT(
             R"({"type": "classify", "params": {"text_field": "text_a", "label_field": "label"}})"),
         .rules = classifier}),
    fine_tuning(
        {.title = "TencentPretrain's run_text2text.py",
         .names = {"run_text2text.py"},
         .marks = kOfText,
         .always = TESSERA_TENCENT(
             R"({"type": "seq2seq", "params": {"source_field": "text_a", "target_field": "label"}})"),
         .rules = text2text}),
    {.title = "TencentPretrain's inference",
     .names = {"run_classifier_infer.py", "run_classifier_deepspeed_infer.py", "run_ner_infer.py"},
     .tables = tables("tencentpretrain/infer"),
     .rules = predict,
     .file = "config_path"},
    {.title = "TencentPretrain's generation",
     .names = {"generate_lm.py",
               "generate_lm_deepspeed.py",
               "generate_seq2seq.py",
               "generate_seq2seq_deepspeed.py"},
     .tables = {"tencentpretrain/generate",
                "tencentpretrain/infer",
                "tencentpretrain/common",
                "tencentpretrain/model"},
     .rules = generate,
     .file = "config_path"},
    fine_tuning(
        {.title = "TencentPretrain's run_ner.py",
         .names = {"run_ner.py"},
         .marks = {"label2id_path"},
         .always = TESSERA_TENCENT(
             R"({"type": "tag", "params": {"tokens_field": "text_a", "tags_field": "label"}})"),
         .rules = tagger}),
    {.title = "TencentPretrain's questions, choices and embeddings",
     .names = {"run_cmrc.py",
               "run_c3.py",
               "run_chid.py",
               "run_dbqa.py",
               "run_simcse.py",
               "run_cmrc_infer.py",
               "run_c3_infer.py",
               "run_chid_infer.py"},
     .tables = {"tencentpretrain/other"},
     .refused = "there is no task that marks an answer, chooses among texts, ranks them or "
                "contrasts them",
     .instead = "make each pair a sample with a label: finetune/run_classifier.py"},
    {.title = "TencentPretrain's other classifiers",
     .names = {"run_classifier_cv.py",
               "run_classifier_grid.py",
               "run_classifier_mt.py",
               "run_classifier_mt_deepspeed.py",
               "run_classifier_prompt.py",
               "run_classifier_siamese.py",
               "run_classifier_multi_label.py",
               "run_classifier_cv_infer.py",
               "run_classifier_mt_infer.py",
               "run_classifier_mt_deepspeed_infer.py",
               "run_classifier_multi_label_infer.py",
               "run_classifier_prompt_infer.py",
               "run_classifier_siamese_infer.py"},
     .tables = {"tencentpretrain/other"},
     .refused = "its folds, grids, several data sets, prompts and pairs of towers are not built",
     .instead =
         "finetune/run_classifier.py; folds are tessera train my.json --folds 5, and several "
         "labels the task classify with multi_label"},
    {.title = "TencentPretrain's pictures and sounds",
     .names = {"run_image_classifier.py",
               "run_image_classifier_infer.py",
               "run_speech2text.py",
               "run_speech2text_infer.py",
               "generate_talk2face.py"},
     .folders = {"TencentPretrain", "tencentpretrain", "finetune", "inference"},
     .marks = kOfText,
     .tables = {"tencentpretrain/other"},
     .refused = "its pictures and sounds are not read",
     .instead = "use the task image_classify: tessera init --task image_classify"},
    {.title = "TencentPretrain's inference of texts",
     .names = {"run_text2text_infer.py"},
     .tables = {"tencentpretrain/infer"},
     .refused = "its table of texts is not written",
     .instead = "tessera generate RUN --prompts IN.jsonl --out OUT.jsonl"},
    {.title = "TencentPretrain's conversion",
     .names = {"convert_llama_from_huggingface_to_tencentpretrain.py",
               "convert_llama_to_tencentpretrain.py",
               "convert_bert_from_huggingface_to_tencentpretrain.py",
               "convert_gpt2_from_huggingface_to_tencentpretrain.py",
               "convert_t5_from_huggingface_to_tencentpretrain.py",
               "convert_albert_from_huggingface_to_tencentpretrain.py",
               "convert_bart_from_huggingface_to_tencentpretrain.py",
               "convert_pegasus_from_huggingface_to_tencentpretrain.py",
               "convert_vit_from_huggingface_to_tencentpretrain.py",
               "convert_xlmroberta_from_huggingface_to_tencentpretrain.py"},
     .tables = {"tencentpretrain/convert"},
     .refused = "no conversion is needed: a folder of Hugging Face is read as it is",
     .instead = "name it with --pretrained_model_path FOLDER"},
});

}  // namespace
}  // namespace tessera::interop
