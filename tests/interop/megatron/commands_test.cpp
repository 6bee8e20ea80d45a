// SPDX-License-Identifier: Apache-2.0
// Commands of Megatron-LM, Megatron-DeepSpeed and DeepSpeed-Chat: models, optimizers and data.
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "interop/command_folder.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/text.h"

namespace tessera::interop {
namespace {

using testing::HasSubstr;

class MegatronCommands : public CommandFolder {
 protected:
  void SetUp() override {
    CommandFolder::SetUp();
    write("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\n");
    for (const char* name : {"s.bin", "s.idx"})
      write(name, "");
  }
  /// Ten records, of which each step of DeepSpeed-Chat reads some.
  static void write_pairs() {
    std::string lines;
    for (int i = 0; i < 10; ++i)
      lines += R"({"prompt": "a", "chosen": "b", "rejected": "c"})"
               "\n";
    write("p/train.jsonl", lines);
  }
};

constexpr const char* kGpt =
    "pretrain_gpt.py --num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 16 "
    "--max-position-embeddings 16 --micro-batch-size 2 --global-batch-size 8 --train-iters 10 "
    "--lr 1e-3 --mock-data --tokenizer-type NullTokenizer --vocab-size 256 ";
constexpr const char* kT5 =
    "pretrain_t5.py --encoder-num-layers 3 --decoder-num-layers 2 --hidden-size 32 "
    "--num-attention-heads 4 --encoder-seq-length 32 --decoder-seq-length 12 "
    "--max-position-embeddings 32 --micro-batch-size 2 --global-batch-size 8 --train-iters 10 "
    "--lr 1e-3 --data-path s --vocab-file vocab.txt --tokenizer-type BertWordPieceCase ";

TEST_F(MegatronCommands, RouteBySinkhorn) {
  const std::string experts = std::string(kGpt) +
                              "--num-experts 4 --disable-bias-linear "
                              "--moe-router-load-balancing-type sinkhorn ";
  const ForeignCommand one = read(experts + "--moe-router-topk 1");
  EXPECT_EQ(key(one, "model.moe.router.choice"), "\"sinkhorn\"");
  EXPECT_EQ(key(one, "model.moe.router.score"), "\"sigmoid\"");
  EXPECT_EQ(key(one, "model.moe.router.normalize"), "false");
  EXPECT_EQ(key(one, "model.moe.losses.balance"), "0");
  EXPECT_EQ(key(read(experts), "model.moe.router.score"), "\"softmax\"") << "two experts a token";
  EXPECT_THAT(refusal(experts + "--moe-aux-loss-coeff 1e-2"),
              HasSubstr("sinkhorn beside a loss that balances"));
  EXPECT_THAT(refusal(experts + "--moe-router-enable-expert-bias "
                                "--moe-router-score-function sigmoid"),
              HasSubstr("with --moe-router-load-balancing-type sinkhorn"));
}

TEST_F(MegatronCommands, SplitExpertsOverAllTensorParallelRanks) {
  const std::string experts = std::string(kGpt) +
                              "--num-experts 4 --tensor-model-parallel-size 4 "
                              "--expert-model-parallel-size 2 --expert-tensor-parallel-size ";
  const ForeignCommand command = read(experts + "2");
  EXPECT_EQ(key(command, "parallel.expert"), "1");
  EXPECT_EQ(key(command, "parallel.expert_tensor"), "4");
  EXPECT_THAT(command.notes, testing::Contains(HasSubstr("4 ranks hold a copy of the experts")));
  EXPECT_EQ(key(read(experts + "1"), "parallel.expert"), "2");
  EXPECT_THAT(refusal(experts + "3"), HasSubstr("6 ranks hold a copy"));
}

TEST_F(MegatronCommands, NormalizeQueriesAndKeys) {
  ForeignCommand command = read(std::string(kGpt) + "--qk-layernorm");
  EXPECT_EQ(key(command, "model.family"), "\"gpt2\"");
  EXPECT_EQ(key(command, "model.qk_norm"), "true");
  const std::string rope =
      std::string(kGpt) + "--position-embedding-type rope --normalization RMSNorm ";
  command = read(rope + "--rotary-percent 0.5 --qk-layernorm");
  EXPECT_EQ(key(command, "model.family"), "\"compose\"");
  EXPECT_EQ(key(command, "model.qk_norm"), "true");
  EXPECT_EQ(key(read(rope + "--swiglu --disable-bias-linear --hidden-dropout 0 --qk-layernorm"),
                "model.family"),
            "\"qwen3\"");
}

TEST_F(MegatronCommands, MayTurnNeighbouringChannels) {
  const std::string rope = std::string(kGpt) + "--position-embedding-type rope ";
  const std::string llama =
      rope +
      "--normalization RMSNorm --swiglu --disable-bias-linear --hidden-dropout 0 "
      "--attention-dropout 0 ";
  EXPECT_EQ(key(read(llama), "model.family"), "\"llama\"");
  for (const std::string& command : {llama, rope})
    EXPECT_EQ(key(read(command + "--rotary-interleaved"), "model.family"), "\"compose\"");
}

TEST_F(MegatronCommands, HaveLatentAttentionAsDeepSeek) {
  const std::string latent =
      std::string(kGpt) +
      "--position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear "
      "--hidden-dropout 0 --attention-dropout 0 --multi-latent-attention --kv-lora-rank 8 "
      "--qk-head-dim 8 --qk-pos-emb-head-dim 4 --v-head-dim 8 ";
  ForeignCommand command = read(latent + "--qk-layernorm --q-lora-rank 12");
  EXPECT_EQ(key(command, "model.family"), "\"deepseek_v3\"");
  EXPECT_EQ(key(command, "model.q_lora_rank"), "12");
  EXPECT_EQ(key(command, "model.qk_nope_head_dim"), "8");
  EXPECT_EQ(key(command, "model.rope_scaling"), "none");
  EXPECT_EQ(key(command, "model.moe.num_experts"), "0");
  const std::string longer = latent + "--qk-layernorm --rotary-scaling-factor 40 ";
  EXPECT_EQ(key(read(longer + "--rope-type yarn"), "model.rope_scaling"), "\"yarn\"");
  EXPECT_EQ(key(read(longer + "--rope-type rope"), "model.rope_scaling"), "none");
  EXPECT_THAT(refusal(std::string(kGpt) + "--position-embedding-type rope --rope-type yarn"),
              HasSubstr("--rope-type yarn is not supported"));
  const std::string experts =
      latent +
      "--qk-layernorm --rotary-scaling-factor 40 --mscale 1.0 --mscale-all-dim 1.0 "
      "--num-experts 8 --moe-router-topk 4 --moe-router-pre-softmax "
      "--moe-router-score-function sigmoid --moe-router-num-groups 4 "
      "--moe-router-load-balancing-type seq_aux_loss --moe-aux-loss-coeff 1e-4 ";
  command = read(experts +
                 "--moe-router-group-topk 2 --moe-router-enable-expert-bias "
                 "--moe-shared-expert-intermediate-size 32");
  EXPECT_EQ(key(command, "model.q_lora_rank"), "0");
  EXPECT_EQ(key(command, "model.rope_factor"), "40");
  EXPECT_EQ(key(command, "model.moe.num_experts"), "8");
  EXPECT_EQ(key(command, "model.moe.first_dense"), "0");
  EXPECT_EQ(key(command, "model.moe.router.normalize"), "true") << "sigmoids always are";
  EXPECT_EQ(key(command, "model.moe.router.group_rank"), "\"best_two\"");
  EXPECT_EQ(key(command, "model.moe.router.correction"), "true");
  EXPECT_EQ(key(command, "model.moe.losses.sequence_balance"), "1e-4");
  command = read(experts + "--moe-router-group-topk 4");
  EXPECT_EQ(key(command, "model.moe.router.group_rank"), "\"best\"");
  EXPECT_EQ(key(command, "model.moe.router.correction"), "false");
  EXPECT_EQ(key(command, "model.moe.shared"), "0");
  EXPECT_THAT(refusal(experts + "--moe-router-group-topk 1"), HasSubstr("4 of their scores"));
  EXPECT_THAT(refusal(latent), HasSubstr("without norms of the latent vectors"));
  EXPECT_THAT(refusal(std::string(kGpt) + "--multi-latent-attention --qk-layernorm"),
              HasSubstr("latent attention is built for"));
}

TEST_F(MegatronCommands, HaveTheBlocksOfStagesOfALayout) {
  const std::string gpt = std::string("torchrun --nproc_per_node 2 ") + kGpt +
                          "--num-layers 5 --pipeline-model-parallel-size 2 "
                          "--pipeline-model-parallel-layout ";
  ForeignCommand command = read(gpt + "Ett|tttL");
  EXPECT_EQ(key(command, "parallel.pipeline.partition"), "[0,3,7]");
  EXPECT_EQ(key(command, "parallel.pipeline.chunks"), "none");
  // The loss may be alone in the last part.
  command = read(gpt + "Et|(tt|)*2L");
  EXPECT_EQ(key(command, "parallel.pipeline.partition"), "[0,2,4,6,7]");
  EXPECT_EQ(key(command, "parallel.pipeline.chunks"), "2");
  for (const auto& [word, why] : {std::pair("Ett|tttmL", "no prediction of several tokens"),
                                  {"Ett|ttL", "it has 4 layers, and the model 5"},
                                  {"Ett|t|ttL", "3 parts cannot be divided among 2"},
                                  {"Ettttt||L", "cannot be divided"},
                                  {"ttEttt|L", "expected the blocks"},
                                  {"E(t(t)*2)|L", "expected the blocks"},
                                  {"Et*99999999999|L", "expected the blocks"},
                                  {"Ex|L", "expected the blocks"}})
    EXPECT_THAT(refusal(gpt + word), HasSubstr(why)) << word;
}

TEST_F(MegatronCommands, MayUseMuonWithItsDefaults) {
  const ForeignCommand command = read(std::string(kGpt) + "--optimizer muon");
  EXPECT_EQ(key(command, "optimizer.type"), "\"Muon\"");
  EXPECT_EQ(key(command, "optimizer.params.momentum"), "0.9");
  EXPECT_EQ(key(command, "optimizer.params.nesterov"), "false");
  EXPECT_EQ(key(command, "optimizer.params.split_qkv"), "true");
  EXPECT_EQ(key(command, "optimizer.params.adjust_lr_fn"), "\"spectral\"");
  EXPECT_THAT(key(command, "optimizer.params.ns_coefficients"), HasSubstr("4.0848"));
  EXPECT_EQ(key(command, "optimizer.params.betas"), "[0.9,0.999]");
  const ForeignCommand other =
      read(std::string(kGpt) +
           "--optimizer muon --muon-nesterov --muon-no-split-qkv --muon-scale-mode shape_scaling "
           "--muon-coefficient-type simple --muon-extra-scale-factor 0.2");
  EXPECT_EQ(key(other, "optimizer.params.nesterov"), "true");
  EXPECT_EQ(key(other, "optimizer.params.split_qkv"), "false");
  EXPECT_EQ(key(other, "optimizer.params.adjust_lr_fn"), "\"original\"");
  EXPECT_EQ(key(other, "optimizer.params.scale_factor"), "0.2");
  for (const char* option : {"--muon-scale-mode frobenius",
                             "--muon-coefficient-type aol",
                             "--muon-scalar-optimizer lion",
                             "--muon-tp-mode blockwise --tensor-model-parallel-size 2"})
    EXPECT_THAT(refusal(std::string(kGpt) + "--optimizer muon " + option),
                HasSubstr("is not supported"));
}

TEST_F(MegatronCommands, OfT5RemoveSpansOfWords) {
  const ForeignCommand command = read(std::string(kT5) + "--vocab-extra-ids 100");
  EXPECT_EQ(key(command, "task.type"), "\"word_span_corruption\"");
  EXPECT_EQ(key(command, "model.family"), "\"compose\"");
  EXPECT_EQ(key(command, "model.decoder"), "\"transformer\"");
  EXPECT_EQ(key(command, "model.shared_positions"), "true");
  EXPECT_EQ(key(command, "model.num_layers"), "3");
  EXPECT_EQ(key(command, "model.num_decoder_layers"), "2");
  EXPECT_EQ(key(command, "data.sequence_length"), "32");
  EXPECT_EQ(key(command, "task.params.target_length"), "12");
  // Seven words, the beginning and the end of answers, and a hundred sentinels.
  EXPECT_EQ(key(command, "model.start_token"), "7");
  EXPECT_EQ(key(command, "task.params.end_id"), "8");
  EXPECT_EQ(key(command, "task.params.sentinel_id"), "9");
  EXPECT_EQ(key(command, "model.vocab_size"), "128");
  EXPECT_THAT(refusal(kT5), HasSubstr("--vocab-extra-ids 100"));
  EXPECT_THAT(refusal(std::string(kGpt) + "--vocab-extra-ids 100"),
              HasSubstr("only pretrain_t5.py has such tokens"));
}

TEST_F(MegatronCommands, HaveNoModulesOfPythonButTheLocalOnes) {
  EXPECT_EQ(key(read(std::string(kGpt) + "--spec local"), "model.family"), "\"gpt2\"");
  EXPECT_THAT(refusal(std::string(kGpt) + "--spec a.module a_function"),
              HasSubstr("modules of Python are not imported"));
}

TEST_F(MegatronCommands, ByUpdatesHaveAWarmUpOfNoSamples) {
  const std::string rate = std::string(kGpt) + "--lr-decay-iters 8 --lr-warmup-fraction 0.25 ";
  EXPECT_EQ(key(read(rate + "--lr-warmup-samples 0"), "scheduler.params"),
            key(read(rate), "scheduler.params"));
  EXPECT_NE(key(read(std::string(kGpt) + "--lr-warmup-samples 5"), "scheduler.params"),
            key(read(kGpt), "scheduler.params"));
}

// DeepSpeed-Chat's step 3 sets what a model's settings have: Llama has a dropout of attention only.
TEST_F(MegatronCommands, OfDeepSpeedChatSetTheDropoutThatAModelHas) {
  write_pairs();
  const auto with = [](const std::string& type) {
    write("m/config.json", R"({"model_type": ")" + type + "\"}");
    return read(
        "deepspeed step3_rlhf_finetuning/main.py --data_path p --data_split 2,4,4 "
        "--actor_model_name_or_path m --critic_model_name_or_path m --actor_dropout 0.1");
  };
  const ForeignCommand llama = with("llama"), opt = with("opt"), gpt2 = with("gpt2");
  EXPECT_EQ(key(llama, "model.dropout"), "none");
  EXPECT_EQ(key(llama, "model.attention_dropout"), "0.1");
  EXPECT_EQ(key(opt, "model.dropout"), "0.1");
  EXPECT_EQ(key(gpt2, "model.dropout"), "none");
  EXPECT_THAT(gpt2.notes, testing::Contains(HasSubstr("--actor_dropout has no effect")));
}

// DeepSpeed-Chat knows the fields of these two data sets by their names.
TEST_F(MegatronCommands, OfDeepSpeedChatReadDataSetsWithFieldsOfTheirOwn) {
  write("wangrui6/Zhihu-KOL/train.jsonl", R"({"INSTRUCTION": "why", "RESPONSE": "so"})");
  write("mkqa-Japanese/train.jsonl",
        R"({"queries": {"ja": "who"}, "answers": {"ja": [{"text": "me"}]}})"
        "\n"
        R"({"queries": {"ja": "what"}, "answers": {"ja": []}})");
  const ForeignCommand command = read(
      "deepspeed step1_supervised_finetuning/main.py --data_path wangrui6/Zhihu-KOL "
      "mkqa-Japanese --data_split 10,0,0 --model_name_or_path m");
  const json::Value files = json::parse(key(command, "data.train"), "test");
  ASSERT_EQ(files.items().size(), 2U);
  EXPECT_EQ(files::read(files.items()[0].as_string()),
            "{\"prompt\":\" Human: why Assistant:\",\"chosen\":\" so\"}\n");
  EXPECT_EQ(files::read(files.items()[1].as_string()),
            "{\"prompt\":\" Human: who Assistant:\",\"chosen\":\" me\"}\n");
}

// DeepSpeed-Chat evaluates on a tenth of the split "train", which it does not train on.
TEST_F(MegatronCommands, OfDeepSpeedChatDivideTheOnlySplitOfADataSet) {
  std::string records;
  for (int i = 0; i < 20; ++i)
    records += "{\"INSTRUCTION\": \"why\", \"RESPONSE\": \"" + std::to_string(i) + "\"}\n";
  write("wangrui6/Zhihu-KOL/train.jsonl", records);
  const ForeignCommand command = read(
      "deepspeed step1_supervised_finetuning/main.py --data_path wangrui6/Zhihu-KOL "
      "--data_split 10,0,0 --model_name_or_path m");
  const auto lines = [&](const char* name) {
    const json::Value file = json::parse(key(command, name), "test");
    std::vector<std::string> out = text::split(files::read(file.as_string()), '\n');
    std::erase(out, "");
    return out;
  };
  std::vector<std::string> all = lines("data.train");
  EXPECT_EQ(all.size(), 18U);
  const std::vector<std::string> evaluated = lines("data.validation");
  EXPECT_EQ(evaluated.size(), 2U);
  all.insert(all.end(), evaluated.begin(), evaluated.end());
  EXPECT_EQ(std::set(all.begin(), all.end()).size(), 20U);
}

TEST_F(MegatronCommands, OfDeepSpeedChatStartTheRanksOfARollout) {
  write_pairs();
  EXPECT_EQ(read("deepspeed step3_rlhf_finetuning/main.py --data_path p --data_split 2,4,4 "
                 "--actor_model_name_or_path m --critic_model_name_or_path m "
                 "--enable_hybrid_engine --inference_tp_size 4")
                .ranks,
            4);
}

}  // namespace
}  // namespace tessera::interop
