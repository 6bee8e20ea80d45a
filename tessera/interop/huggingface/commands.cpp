// SPDX-License-Identifier: Apache-2.0
// The example scripts of transformers: what each of them trains.
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/text.h"
#include "tessera/interop/command_meaning.h"
#include "tessera/interop/huggingface/trainer_rules.h"
#include "tessera/interop/option_table.h"

namespace tessera::interop {
namespace {

using Setting = ForeignFlags::Setting;

constexpr std::string_view kRows =
#include "tessera/interop/huggingface/options.inc"
    ;
const bool kTables = add_option_tables("huggingface", kRows);

bool is_no_trainer(const Meaning& meaning) {
  return meaning.script.find("_no_trainer") != std::string::npos;
}

// A script trains only if it is asked to.
void require_training(Meaning& meaning) {
  if (is_no_trainer(meaning) || meaning.is_on("@do_train")) return;
  meaning.refuse(fmt::format("{} without --do_train trains nothing", meaning.program),
                 "add --do_train, or evaluate a model with: tessera eval MODEL --data FILE");
}

// The starting model, or the size of a new one.
void set_model(Meaning& meaning) {
  const Setting* const from = meaning.given("@model");
  const Setting* const type = meaning.given("@model_type");
  if (from != nullptr) {
    huggingface::use_model(meaning, from);
  } else if (type != nullptr) {
    meaning.copy("model.family", type);
    huggingface::set_overrides(meaning);
  } else if (meaning.given("@config_name") == nullptr) {
    meaning.refuse(fmt::format("{} without a model", meaning.program), "add --model_name_or_path");
  }
  if (const Setting* const config = meaning.given("@config_name")) {
    if (from == nullptr || config->value.as_string() != from->value.as_string()) {
      meaning.refuse(
          fmt::format("{}: a model is not made from a name of its configuration", config->flag),
          "give --model_type and --config_overrides, or write its sizes with --set "
          "model.hidden_size=768");
    }
  }
  if (const Setting* const tokenizer = meaning.given("@tokenizer_name"))
    huggingface::set_tokenizer(meaning, *tokenizer);
}

void set_data(Meaning& meaning, const huggingface::Splits& splits = {}) {
  if (const Setting* const name = meaning.given("@dataset")) {
    huggingface::use_dataset(meaning, *name, meaning.text("@dataset_config"), splits);
  } else if (meaning.value("data.train") == nullptr) {
    meaning.refuse(fmt::format("{} without data", meaning.program),
                   "add --train_file, or --dataset_name with a data set on this machine");
  }
  // The scripts read a folder of test data only to predict it.
  if (!meaning.is_on("@do_predict")) meaning.drop("data.test");
}

// Scripts without the Trainer evaluate after every epoch, and save the weights at the end.
void set_no_trainer(Meaning& meaning) {
  if (!is_no_trainer(meaning)) return;
  if (meaning.value("data.validation") != nullptr)
    meaning.set("eval.every", json::Value::string("epoch"));
  const std::string every = meaning.text("@checkpointing_steps", "0");
  const Setting* const given = meaning.given("@checkpointing_steps");
  if (every == "epoch") {
    meaning.set("checkpoint.every", json::Value::string("epoch"), given);
  } else {
    meaning.set("checkpoint.every", json::parse(every, "--checkpointing_steps"), given);
  }
}

// The first records of each part.
void limit_parts(Meaning& meaning) {
  for (const auto& [name, key] : {std::pair("@max_train", "data.train"),
                                  std::pair("@max_eval", "data.validation"),
                                  std::pair("@max_test", "data.test")}) {
    const Setting* const most = meaning.given(name);
    if (most == nullptr) continue;
    const Setting copy = *most;
    huggingface::limit_records(meaning, key, copy);
  }
}

void finish(Meaning& meaning) {
  limit_parts(meaning);
  require_training(meaning);
  set_model(meaning);
  huggingface::apply_trainer(meaning);
  set_no_trainer(meaning);
}

// Language models hold out a share of the text if no other is named.
void hold_out(Meaning& meaning) {
  const Setting* const percent = meaning.given("@validation_percent");
  const bool wanted = meaning.is_on("@do_eval") || is_no_trainer(meaning);
  if (meaning.value("data.validation") != nullptr || !wanted) return;
  const double share = percent == nullptr ? 5.0 : percent->value.as_double();
  meaning.set("data.validation_fraction", json::Value::number(share / 100), percent);
}

void clm(Meaning& meaning) {
  set_data(meaning, {.test = ""});
  hold_out(meaning);
  finish(meaning);
}

void mlm(Meaning& meaning) {
  set_data(meaning, {.test = ""});
  hold_out(meaning);
  if (meaning.is_on("@line_by_line"))
    meaning.set("data.pack", json::Value::boolean(false), meaning.find("@line_by_line"));
  finish(meaning);
}

void glue(Meaning& meaning) {
  const Setting* const task = meaning.given("@glue_task");
  const std::string name = task == nullptr ? "" : text::lower(task->value.as_string());
  if (task != nullptr) {
    Setting glue = *task;
    glue.value = json::Value::string("glue");
    const bool mnli = name == "mnli";
    huggingface::use_dataset(meaning,
                             glue,
                             name,
                             {.validation = mnli ? "validation_matched" : "validation",
                              .test = mnli ? "test_matched" : "test"});
    if (!meaning.is_on("@do_predict")) meaning.drop("data.test");
  } else {
    set_data(meaning);
  }
  if (name == "stsb") meaning.set("task.type", json::Value::string("regression"), task);
  finish(meaning);
}

void classification(Meaning& meaning) {
  set_data(meaning,
           {.train = meaning.text("@train_split", "train"),
            .validation = meaning.text("@validation_split", "validation"),
            .test = meaning.text("@test_split", "test")});
  if (meaning.is_on("@regression"))
    meaning.set("task.type", json::Value::string("regression"), meaning.find("@regression"));
  if (meaning.is_on("@shuffle_first")) {
    const std::string shuffle = meaning.find("@shuffle_first")->flag;
    if (const Setting* const most = meaning.given("@max_train")) {
      meaning.refuse(fmt::format("{} with {} draws records at random", shuffle, most->flag),
                     fmt::format("remove {}: the first records are used, in another order in every "
                                 "epoch",
                                 shuffle));
    } else {
      meaning.note(fmt::format("{}: every epoch is shuffled", shuffle));
    }
  }
  const std::vector<std::string> columns = meaning.texts("@text_columns");
  const Setting* const given = meaning.given("@text_columns");
  if (columns.size() > 2)
    meaning.refuse(fmt::format("{} names {} columns", given->flag, columns.size()),
                   "name one, or two as a pair");
  if (!columns.empty())
    meaning.set("task.params.text_field", json::Value::string(columns[0]), given);
  if (columns.size() == 2)
    meaning.set("task.params.text_pair_field", json::Value::string(columns[1]), given);
  finish(meaning);
}

void xnli(Meaning& meaning) {
  const Setting* const language = meaning.given("@language");
  if (language == nullptr) {
    meaning.refuse(fmt::format("{} without --language", meaning.program), "add --language de");
  } else {
    const Setting* const of_training = meaning.given("@train_language");
    Setting data = of_training != nullptr ? *of_training : *language;
    const std::string name = data.value.as_string();
    data.value = json::Value::string("facebook/xnli");
    huggingface::use_dataset(meaning, data, name, {.validation = "", .test = ""});
    Setting held_out = *language;
    held_out.value = data.value;
    huggingface::use_dataset(
        meaning, held_out, language->value.as_string(), {.train = "", .test = ""});
  }
  finish(meaning);
}

void ner(Meaning& meaning) {
  if (meaning.value("task.params.tags_field") == nullptr && meaning.given("@dataset") != nullptr) {
    meaning.set("task.params.tags_field",
                json::Value::string(meaning.text("@ner_task") + "_tags"),
                meaning.find("@ner_task"));
  }
  set_data(meaning);
  finish(meaning);
}

// The model's answers are compared at evaluations, if that is asked for.
void set_generated(Meaning& meaning) {
  if (!meaning.is_on("@generate") || meaning.value("eval.every") == nullptr) return;
  constexpr std::int64_t kAll = 1'000'000'000;
  meaning.set("eval.generate", json::Value::integer(kAll), meaning.find("@generate"));
}

// run_summarization.py, summarization_name_mapping: the columns of data sets that it knows.
void set_summary_columns(Meaning& meaning) {
  const Setting* const data = meaning.given("@dataset");
  if (data == nullptr || !data->value.is_string()) return;
  const std::string path = data->value.as_string();
  const std::string name = path.substr(path.rfind('/') + 1);
  for (const auto& [known, source, target] :
       {std::tuple("amazon_reviews_multi", "review_body", "review_title"),
        std::tuple("big_patent", "description", "abstract"),
        std::tuple("cnn_dailymail", "article", "highlights"),
        std::tuple("orange_sum", "text", "summary"),
        std::tuple("pn_summary", "article", "summary"),
        std::tuple("psc", "extract_text", "summary_text"),
        std::tuple("samsum", "dialogue", "summary"),
        std::tuple("thaisum", "body", "summary"),
        std::tuple("xglue", "news_body", "news_title"),
        std::tuple("xsum", "document", "summary"),
        std::tuple("wiki_summary", "article", "highlights"),
        std::tuple("multi_news", "document", "summary")}) {
    if (name != known) continue;
    if (meaning.value("task.params.source_field") == nullptr)
      meaning.set("task.params.source_field", json::Value::string(source), data);
    if (meaning.value("task.params.target_field") == nullptr)
      meaning.set("task.params.target_field", json::Value::string(target), data);
  }
}

void summarization(Meaning& meaning) {
  set_summary_columns(meaning);
  set_data(meaning);
  finish(meaning);
  set_generated(meaning);
}

void translation(Meaning& meaning) {
  const Setting *const from = meaning.given("@source_lang"), *const to =
                                                                 meaning.given("@target_lang");
  if (from == nullptr || to == nullptr) {
    meaning.refuse(fmt::format("{} without --source_lang and --target_lang", meaning.program),
                   "add both");
    return;
  }
  const auto field = [](const Setting& language) {
    const std::string& name = language.value.as_string();
    return json::Value::string("translation." + name.substr(0, name.find('_')));
  };
  meaning.set("task.params.source_field", field(*from), from);
  meaning.set("task.params.target_field", field(*to), to);
  set_data(meaning);
  finish(meaning);
  set_generated(meaning);
}

void image(Meaning& meaning) {
  set_data(meaning);
  if (meaning.value("data.validation") != nullptr) meaning.drop("data.validation_fraction");
  // A folder of pictures has a folder for each class, and no columns.
  if (meaning.given("@dataset") == nullptr) {
    meaning.drop("task.params.image_field");
    meaning.drop("task.params.label_field");
  }
  finish(meaning);
}

constexpr std::string_view kText =
    R"({"data": {"drop_last": false}, "eval": {"batches": 1000000000}})";
#define TESSERA_SCRIPT_OF(type) \
  R"({"task": {"type": ")" type \
  R"("}, "data": {"drop_last": false}, "eval": {"batches": 1000000000}})"

const bool kPrograms = add_programs({
    {.title = "Hugging Face's run_clm.py",
     .names = {"run_clm.py"},
     .tables = {"huggingface/clm", "huggingface/data", "huggingface/model", "huggingface/trainer"},
     .always = kText,
     .rules = clm,
     .file = "-"},
    {.title = "Hugging Face's run_clm_no_trainer.py",
     .names = {"run_clm_no_trainer.py"},
     .tables =
         {"huggingface/no_trainer", "huggingface/clm", "huggingface/data", "huggingface/model"},
     .always = kText,
     .rules = clm},
    {.title = "Hugging Face's run_mlm.py",
     .names = {"run_mlm.py"},
     .tables = {"huggingface/mlm", "huggingface/data", "huggingface/model", "huggingface/trainer"},
     .always = TESSERA_SCRIPT_OF("masked_lm"),
     .rules = mlm,
     .file = "-"},
    {.title = "Hugging Face's run_mlm_no_trainer.py",
     .names = {"run_mlm_no_trainer.py"},
     .tables =
         {"huggingface/no_trainer", "huggingface/mlm", "huggingface/data", "huggingface/model"},
     .always = TESSERA_SCRIPT_OF("masked_lm"),
     .rules = mlm},
    {.title = "Hugging Face's run_glue.py",
     .names = {"run_glue.py"},
     .tables = {"huggingface/glue", "huggingface/data", "huggingface/model", "huggingface/trainer"},
     .always = TESSERA_SCRIPT_OF("classify"),
     .rules = glue,
     .file = "-"},
    {.title = "Hugging Face's run_glue_no_trainer.py",
     .names = {"run_glue_no_trainer.py"},
     .tables =
         {"huggingface/no_trainer", "huggingface/glue", "huggingface/data", "huggingface/model"},
     .always = TESSERA_SCRIPT_OF("classify"),
     .rules = glue},
    {.title = "Hugging Face's run_classification.py",
     .names = {"run_classification.py"},
     .tables = {"huggingface/classification",
                "huggingface/data",
                "huggingface/model",
                "huggingface/trainer"},
     .always = TESSERA_SCRIPT_OF("classify"),
     .rules = classification,
     .file = "-"},
    {.title = "Hugging Face's run_xnli.py",
     .names = {"run_xnli.py"},
     .tables = {"huggingface/xnli", "huggingface/data", "huggingface/model", "huggingface/trainer"},
     .always = TESSERA_SCRIPT_OF("classify"),
     .rules = xnli,
     .file = "-"},
    {.title = "Hugging Face's run_ner.py",
     .names = {"run_ner.py"},
     .tables = {"huggingface/ner", "huggingface/data", "huggingface/model", "huggingface/trainer"},
     .always = TESSERA_SCRIPT_OF("tag"),
     .rules = ner,
     .file = "-"},
    {.title = "Hugging Face's run_ner_no_trainer.py",
     .names = {"run_ner_no_trainer.py"},
     .tables =
         {"huggingface/no_trainer", "huggingface/ner", "huggingface/data", "huggingface/model"},
     .always = TESSERA_SCRIPT_OF("tag"),
     .rules = ner},
    {.title = "Hugging Face's run_summarization.py",
     .names = {"run_summarization.py"},
     .tables = {"huggingface/summarization",
                "huggingface/data",
                "huggingface/model",
                "huggingface/seq2seq",
                "huggingface/trainer"},
     .always = TESSERA_SCRIPT_OF("seq2seq"),
     .rules = summarization,
     .file = "-"},
    {.title = "Hugging Face's run_summarization_no_trainer.py",
     .names = {"run_summarization_no_trainer.py"},
     .tables = {"huggingface/no_trainer",
                "huggingface/summarization",
                "huggingface/data",
                "huggingface/model",
                "huggingface/seq2seq"},
     .always = TESSERA_SCRIPT_OF("seq2seq"),
     .rules = summarization},
    {.title = "Hugging Face's run_translation.py",
     .names = {"run_translation.py"},
     .tables = {"huggingface/translation",
                "huggingface/data",
                "huggingface/model",
                "huggingface/seq2seq",
                "huggingface/trainer"},
     .always = TESSERA_SCRIPT_OF("seq2seq"),
     .rules = translation,
     .file = "-"},
    {.title = "Hugging Face's run_translation_no_trainer.py",
     .names = {"run_translation_no_trainer.py"},
     .tables = {"huggingface/no_trainer",
                "huggingface/translation",
                "huggingface/data",
                "huggingface/model",
                "huggingface/seq2seq"},
     .always = TESSERA_SCRIPT_OF("seq2seq"),
     .rules = translation},
    {.title = "Hugging Face's run_image_classification.py",
     .names = {"run_image_classification.py"},
     .tables =
         {"huggingface/image", "huggingface/data", "huggingface/model", "huggingface/trainer"},
     .always = TESSERA_SCRIPT_OF("image_classify"),
     .rules = image,
     .file = "-"},
    {.title = "Hugging Face's question answering",
     .names = {"run_qa.py", "run_qa_no_trainer.py", "run_qa_beam_search.py", "run_squad.py"},
     .tables = {"huggingface/trainer"},
     .refused = "there is no task that marks an answer in a text",
     .instead = "let a model write the answers: the task seq2seq or sft"},
    {.title = "Hugging Face's run_seq2seq_qa.py",
     .names = {"run_seq2seq_qa.py"},
     .tables = {"huggingface/trainer"},
     .refused = "there is no task that joins question and context",
     .instead = "write them into one field and use the task seq2seq: tessera init --task seq2seq"},
    {.title = "Hugging Face's run_swag.py",
     .names = {"run_swag.py", "run_swag_no_trainer.py", "run_multiple_choice.py"},
     .tables = {"huggingface/trainer"},
     .refused = "there is no task that chooses among several texts",
     .instead = "make each choice a sample with a label, and use the task classify"},
    {.title = "Hugging Face's run_plm.py",
     .names = {"run_plm.py"},
     .tables = {"huggingface/trainer"},
     .refused = "there is no permutation language model",
     .instead = "use run_clm.py or run_mlm.py"},
});

}  // namespace
}  // namespace tessera::interop
