// SPDX-License-Identifier: Apache-2.0
// TencentPretrain's scripts become configurations, corpora and commands.
#include <filesystem>
#include <optional>
#include <string>

#include "interop/command_folder.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/config/json.h"
#include "tessera/interop/tencentpretrain/corpus.h"

namespace tessera::interop {
namespace {

namespace tp = tencentpretrain;
using testing::ElementsAre;
using testing::HasSubstr;

// models/bert/base_config.json of TencentPretrain, smaller.
constexpr const char* kTencentBert =
    R"({"emb_size": 32, "feedforward_size": 64, "hidden_size": 32, "hidden_act": "gelu", "heads_num": 4,
        "layers_num": 2, "max_seq_length": 64, "dropout": 0.2, "data_processor": "bert",
        "embedding": ["word", "pos", "seg"], "encoder": "transformer", "mask": "fully_visible",
        "target": ["mlm", "sp"]})";
constexpr const char* kTencentGpt =
    R"({"emb_size": 32, "feedforward_size": 64, "hidden_size": 32, "hidden_act": "gelu_fast",
        "heads_num": 4, "layers_num": 2, "max_seq_length": 64, "dropout": 0.1, "data_processor": "lm",
        "embedding": ["word", "pos"], "remove_embedding_layernorm": true, "encoder": "transformer",
        "mask": "causal", "layernorm_positioning": "pre", "target": ["lm"], "tie_weights": true})";

class TencentPretrain : public CommandFolder {
 protected:
  void SetUp() override {
    CommandFolder::SetUp();
    write("models/bert/base_config.json", kTencentBert);
    write("gpt.json", kTencentGpt);
    write("models/vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\nc\n");
    write("text.txt", "a b\nb c\n\nc a\na a\n");
    write("train.tsv", "label\ttext_a\n0\ta b\n1\tb c\n");
    write("pairs.tsv", "label\ttext_a\ttext_b\n0\ta b\tc\n1\tb c\ta\n");
  }

  /// Prepares text.txt as dataset.pt.
  static void prepare(const std::string& options) {
    const ForeignCommand command = read(
        "python3 preprocess.py --corpus_path text.txt --vocab_path models/vocab.txt " + options);
    ASSERT_EQ(command.command, "prepare-corpus");
    ASSERT_EQ(command.words[2], "--settings");
    const tp::Corpus corpus = tp::corpus_of(json::parse_strict(command.words[3], "words"), "words");
    tp::write_corpus(corpus, command.words[1], command.words.size() > 4);
  }
};

constexpr const char* kTencentPretrain =
    "python3 pretrain.py --dataset_path dataset.pt --vocab_path models/vocab.txt "
    "--output_model_path out ";

TEST_F(TencentPretrain, PretrainsBertOnPairsOfSentences) {
  prepare("--dataset_path dataset.pt --seq_length 32 --dup_factor 3 --data_processor bert");
  const ForeignCommand command = read(std::string(kTencentPretrain) +
                                      "--config_path models/bert/base_config.json --world_size 2 "
                                      "--gpu_ranks 0 1 --total_steps 5000 "
                                      "--save_checkpoint_steps 1000 --batch_size 16");
  EXPECT_EQ(command.ranks, 2);
  EXPECT_EQ(key(command, "task.type"), "\"masked_lm\"");
  EXPECT_EQ(key(command, "task.params.pairs"), "\"nsp\"");
  EXPECT_EQ(key(command, "task.params.pair_copies"), "3");
  EXPECT_EQ(key(command, "data.sequence_length"), "32");
  EXPECT_THAT(key(command, "data.train"), HasSubstr("text.txt"));
  EXPECT_EQ(key(command, "model.family"), "\"compose\"");
  EXPECT_EQ(key(command, "model.embedding"), R"(["word","pos","seg"])");
  EXPECT_EQ(key(command, "model.target"), R"(["mlm","sp"])");
  EXPECT_EQ(key(command, "model.vocab_size"), "8");
  EXPECT_EQ(key(command, "model.dropout"), "0.2");  // the configuration's, before the default
  EXPECT_EQ(key(command, "model.tie_embeddings"), "false");
  EXPECT_EQ(key(command, "trainer.max_steps"), "5000");
  EXPECT_EQ(key(command, "checkpoint.every"), "1000");
  EXPECT_EQ(key(command, "scheduler.params.num_warmup_steps"), "500");
  EXPECT_EQ(key(command, "optimizer.params.lr"), "2e-5");
  EXPECT_EQ(key(command, "optimizer.params.eps"), "1e-06");
  EXPECT_EQ(key(command, "optimizer.params.bias_correction"), "false");
  EXPECT_EQ(key(command, "gradient_clipping"), "0");
  EXPECT_EQ(key(command, "trainer.seed"), "7");
}

// Its steps are micro-batches, and the rate falls as if each were an update.
TEST_F(TencentPretrain, CountsMicroBatches) {
  prepare("--data_processor lm --seq_length 16");
  const ForeignCommand command =
      read(std::string(kTencentPretrain) +
           "--config_path gpt.json --data_processor lm --total_steps 1000 --accumulation_steps 4 "
           "--learning_rate 1e-4 --dropout 0");
  EXPECT_EQ(key(command, "trainer.max_steps"), "250");
  EXPECT_EQ(key(command, "gradient_accumulation_steps"), "4");
  EXPECT_EQ(key(command, "scheduler.params.num_training_steps"), "1000");
  EXPECT_EQ(key(command, "scheduler.params.num_warmup_steps"), "100");
  EXPECT_EQ(key(command, "model.embedding_norm"), "false");
  EXPECT_EQ(key(command, "model.activation"), "\"gelu_tanh\"");
  EXPECT_EQ(key(command, "model.norm_position"), "\"pre\"");
  EXPECT_EQ(key(command, "model.dropout"), "0");  // the option's, before the configuration
}

TEST_F(TencentPretrain, ReadsTheConfigurationThatTheScriptReadsByDefault) {
  prepare("--data_processor bert");
  EXPECT_EQ(key(read(kTencentPretrain), "model.hidden_size"), "32");
}

TEST_F(TencentPretrain, PreparesEachKindOfText) {
  struct Case {
    const char *processor, *text, *records;
  };
  for (const Case& one :
       {Case{"lm", "a b\n\nc\n", "{\"text\":\"a b\"}\n{\"text\":\"c\"}\n"},
        Case{"mt", "a\tb\r\n", "{\"prompt\":\"a\",\"completion\":\"b\"}\n"},
        Case{"prefixlm", "a\tb\n", "{\"prompt\":\"a\",\"completion\":\"b\"}\n"},
        Case{"cls", "1\ta\tb\n", "{\"label\":1,\"text_a\":\"a\",\"text_b\":\"b\"}\n"},
        Case{"llm_sft",
             "{\"instruction\": \"a\", \"output\": \"b\"}\n",
             "{\"instruction\":\"a\",\"output\":\"b\"}\n"}}) {
    write("text.txt", one.text);
    prepare(std::string("--data_processor ") + one.processor);
    EXPECT_EQ(files::read("dataset.pt.jsonl"), one.records) << one.processor;
    EXPECT_EQ(tp::read_corpus("dataset.pt").processor, one.processor);
  }
}

TEST_F(TencentPretrain, FineTunesAClassifier) {
  const ForeignCommand command = read(
      "python3 finetune/run_classifier.py --vocab_path models/vocab.txt --train_path pairs.tsv "
      "--dev_path train.tsv --test_path train.tsv --epochs_num 4 --batch_size 2");
  EXPECT_EQ(key(command, "task.type"), "\"classify\"");
  EXPECT_EQ(key(command, "task.params.text_field"), "\"text_a\"");
  EXPECT_EQ(key(command, "task.params.text_pair_field"), "\"text_b\"");
  EXPECT_EQ(key(command, "model.target"), R"(["cls"])");
  EXPECT_EQ(key(command, "trainer.epochs"), "4");
  EXPECT_EQ(key(command, "eval.every"), "\"epoch\"");
  EXPECT_EQ(key(command, "eval.best"), "\"accuracy\"");
  EXPECT_EQ(key(command, "checkpoint.best"), "true");
  EXPECT_EQ(key(command, "data.test"), "\"train.tsv\"");
  EXPECT_EQ(key(command, "scheduler.params.warmup_ratio"), "0.1");
  EXPECT_EQ(key(command, "run.dir"), "\"models/finetuned_model.bin\"");
}

TEST_F(TencentPretrain, FineTunesATagger) {
  write("ids.json", R"({"B-PER": 1, "O": 0})");
  const ForeignCommand command = read(
      "python3 finetune/run_ner.py --vocab_path models/vocab.txt --train_path train.tsv "
      "--dev_path train.tsv --label2id_path ids.json");
  EXPECT_EQ(key(command, "task.type"), "\"tag\"");
  EXPECT_EQ(key(command, "task.params.tokens_field"), "\"text_a\"");
  EXPECT_EQ(key(command, "task.params.labels"), R"(["O","B-PER"])");
  EXPECT_EQ(key(command, "eval.best"), "\"f1\"");
}

TEST_F(TencentPretrain, BeginsFromARun) {
  std::filesystem::create_directories("run");
  const std::string line =
      "python3 finetune/run_classifier.py --vocab_path models/vocab.txt --train_path train.tsv "
      "--dev_path train.tsv --pretrained_model_path ";
  EXPECT_EQ(key(read(line + "run"), "model.from"), "\"run\"");
  // TencentPretrain names the step of a checkpoint behind the path.
  const ForeignCommand command = read(line + "run-5000");
  EXPECT_EQ(key(command, "model.from"), "\"run\"");
  EXPECT_EQ(key(command, "model.hidden_size"), "none");
  EXPECT_THAT(refusal(line + "nothing.bin"), HasSubstr("no such model on this machine"));
}

TEST_F(TencentPretrain, PredictsAndGenerates) {
  std::filesystem::create_directories("run");
  const ForeignCommand predicts = read(
      "python3 inference/run_classifier_infer.py --load_model_path run --vocab_path "
      "models/vocab.txt --config_path models/bert/base_config.json --test_path train.tsv "
      "--prediction_path out.tsv --labels_num 2 --seq_length 64");
  EXPECT_EQ(predicts.command, "predict");
  EXPECT_THAT(
      predicts.words,
      ElementsAre("run", "train.tsv", "--out", "out.tsv", "--length", "64", "--batch", "64"));
  const ForeignCommand writes = read(
      "python3 scripts/generate_lm.py --load_model_path run --vocab_path models/vocab.txt "
      "--config_path gpt.json --test_path text.txt --prediction_path out.txt --top_k 5 "
      "--seq_length 20");
  EXPECT_EQ(writes.command, "generate");
  ASSERT_GE(writes.words.size(), 3U);
  EXPECT_EQ(files::read(writes.words[2]), "{\"prompt\":\"a b\"}\n");
  EXPECT_THAT(writes.words, testing::Contains("--top-k"));
}

TEST_F(TencentPretrain, RefusesWhatIsNotBuilt) {
  write("twice.json", R"({"B-PER": 0, "I-PER": 0})");
  prepare("--data_processor bert");
  write("twice.json", R"({"O": 0, "B-PER": 0})");
  for (const auto& [line, what] :
       {std::pair<std::string, const char*>{std::string(kTencentPretrain) + "--data_processor lm",
                                            "prepared with --data_processor bert"},
        {std::string(kTencentPretrain) + "--span_masking", "--span_masking is not supported"},
        {std::string(kTencentPretrain) + "--total_step 5", "did you mean total_steps?"},
        {std::string(kTencentPretrain) + "--scheduler tri_stage", "tri_stage is not supported"},
        {std::string(kTencentPretrain) + "--world_size 4 --gpu_ranks 0 1", "several hosts"},
        {"python3 preprocess.py --corpus_path text.txt --vocab_path models/vocab.txt "
         "--data_processor bart",
         "bart is not supported"},
        {"python3 preprocess.py --corpus_path no.txt --data_processor lm", "no such file"},
        {"python3 pretrain.py --dataset_path no.pt --output_model_path o --config_path gpt.json",
         "preprocess.py"},
        {"python3 finetune/run_ner.py --label2id_path train.tsv", "train.tsv"},
        {"python3 finetune/run_ner.py --label2id_path twice.json", "tags with their numbers"},
        {"python3 finetune/run_c3.py", "no task that marks an answer"},
        {"python3 scripts/convert_llama_from_huggingface_to_tencentpretrain.py --layers_num 32",
         "no conversion is needed"}})
    EXPECT_THAT(refusal(line), HasSubstr(what)) << line;
  write("text.txt", "a b\n");
  tp::Corpus bad{.processor = "mt", .data = "text.txt", .tokenizer = {}};
  try {
    tp::write_corpus(bad, "d.pt", false);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.text(), HasSubstr("text.txt:1: expected two texts between tabs"));
  }
  write("real.pt", std::string("\x80\x02", 2));
  EXPECT_THROW(tp::read_corpus("real.pt"), Error);
}

}  // namespace
}  // namespace tessera::interop
