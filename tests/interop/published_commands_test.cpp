// SPDX-License-Identifier: Apache-2.0
// What the documents and scripts of other programs write, which their own parsers also accept.
#include <filesystem>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "interop/command_folder.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/interop/toml.h"

namespace tessera::interop {
namespace {

using testing::HasSubstr;

class PublishedCommands : public CommandFolder {
 protected:
  void SetUp() override {
    CommandFolder::SetUp();
    write(
        "d/train.jsonl",
        R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})");
    write("vocab.json", "{}");
    write("merges.txt", "");
  }
  /// Writes a file of axolotl with these lines more.
  static void axolotl(const std::string& lines) {
    write("x.yml",
          "base_model: m\ndatasets:\n  - path: d/train.jsonl\n    type: chat_template\n"
          "adapter: lora\nlora_r: 4\nlora_alpha: 8\nsequence_len: 64\nmicro_batch_size: 1\n"
          "num_epochs: 1\nlearning_rate: 0.0002\n" +
              lines);
  }
};

constexpr const char* kAxolotl = "axolotl train x.yml";
constexpr const char* kSft = "trl sft --model_name_or_path m --dataset_name d ";
constexpr const char* kMegatron =
    "pretrain_gpt.py --num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 16 "
    "--max-position-embeddings 16 --micro-batch-size 2 --global-batch-size 8 --train-iters 10 "
    "--lr 1e-3 --mock-data --tokenizer-type NullTokenizer --vocab-size 256 --lr-decay-style "
    "cosine ";

TEST_F(PublishedCommands, AdaptMatricesOfExperts) {
  const std::string list =
      "lora_target_parameters:\n  - mlp.experts.gate_up_proj\n  - mlp.experts.down_proj\n";
  const std::string names = R"(["mlp.experts.gate_up_proj","mlp.experts.down_proj"])";
  axolotl(list + "lora_target_modules:\n  - q_proj\n");
  ForeignCommand command = read(kAxolotl);
  EXPECT_EQ(key(command, "adapter.target_parameters"), names);
  EXPECT_EQ(key(command, "adapter.targets"), R"(["q_proj"])");
  // PEFT adapts no layers then.
  axolotl(list);
  command = read(kAxolotl);
  EXPECT_EQ(key(command, "adapter.target_parameters"), names);
  EXPECT_EQ(key(command, "adapter.targets"), "[]");

  const std::string flags =
      "--use_peft --lora_target_parameters mlp.experts.gate_up_proj mlp.experts.down_proj ";
  command = read(kSft + flags);
  EXPECT_EQ(key(command, "adapter.target_parameters"), names);
  EXPECT_EQ(key(command, "adapter.targets"), "[]");
  command = read(kSft + flags + "--lora_target_modules all-linear");
  EXPECT_EQ(key(command, "adapter.target_parameters"), names);
  EXPECT_EQ(key(command, "adapter.targets"), "none");
  EXPECT_EQ(key(read(std::string(kSft) + "--use_peft"), "adapter.target_parameters"), "none");
}

TEST_F(PublishedCommands, ReadStoredWeightsOfFewBitsOnlyAsAWhole) {
  axolotl(
      "model_quantization_config: Mxfp4Config\nmodel_quantization_config_kwargs:\n"
      "  dequantize: true\nquantize_moe_experts: true\n");
  EXPECT_EQ(key(read(kAxolotl), "model.from"), "\"m\"");
  for (const char* lines : {"model_quantization_config: Mxfp4Config\n",
                            "model_quantization_config: Mxfp4Config\n"
                            "model_quantization_config_kwargs:\n  dequantize: false\n",
                            "model_quantization_config: FineGrainedFP8Config\n"
                            "model_quantization_config_kwargs:\n  dequantize: true\n"}) {
    axolotl(lines);
    EXPECT_THAT(refusal(kAxolotl), HasSubstr("model_quantization_config")) << lines;
  }
}

TEST_F(PublishedCommands, ReadSlicesOfADataSet) {
  const auto of_axolotl = [](const std::string& split) {
    write("x.yml",
          "base_model: m\ndatasets:\n  - path: d\n    type: chat_template\n    split: " + split +
              "\nsequence_len: 64\nmicro_batch_size: 1\nnum_epochs: 1\nlearning_rate: 0.0002\n");
    return key(read(kAxolotl), "data.train");
  };
  EXPECT_EQ(of_axolotl("train[:1%]"), "\"d/train.jsonl[:1%]\"");
  EXPECT_EQ(of_axolotl("train[10%:20%]"), "\"d/train.jsonl[10%:20%]\"");
  EXPECT_EQ(of_axolotl("train[-5:]"), "\"d/train.jsonl[-5:]\"");
  write("d/test.jsonl", "{}\n{}\n");
  EXPECT_EQ(of_axolotl("train[:1]+test[1:]"), R"(["d/train.jsonl[:1]","d/test.jsonl[1:]"])");
  write("x.yml",
        "base_model: m\ndatasets:\n  - path: json\n    data_files: d/train.jsonl\n    type: "
        "chat_template\n    split: train[:1]\nsequence_len: 64\nmicro_batch_size: 1\n"
        "num_epochs: 1\nlearning_rate: 0.0002\n");
  EXPECT_EQ(key(read(kAxolotl), "data.train"), "\"d/train.jsonl[:1]\"");
  write("x.yml",
        "base_model: m\ndatasets:\n  - path: d\n    type: chat_template\n    split: train[:x]\n");
  EXPECT_THAT(refusal(kAxolotl), HasSubstr("\"x\" is not an end of a slice"));
  write("x.yml",
        "base_model: m\ndatasets:\n  - path: d\n    type: chat_template\n    split: dev[:1%]\n");
  EXPECT_THAT(refusal(kAxolotl), HasSubstr("has no part \"dev[:1%]\""));

  const ForeignCommand trl = read(std::string(kSft) +
                                  "--dataset_train_split train[:50%] --dataset_test_split "
                                  "train[50%:] --eval_strategy epoch");
  EXPECT_EQ(key(trl, "data.train"), "\"d/train.jsonl[:50%]\"");
  EXPECT_EQ(key(trl, "data.validation"), "\"d/train.jsonl[50%:]\"");
  write("sft.yaml",
        "model_name_or_path: m\ndatasets:\n  - path: d\n    split: train[:1]\n  - path: d\n"
        "    split: test\n");
  EXPECT_EQ(key(read("trl sft --config sft.yaml"), "data.train"),
            R"(["d/train.jsonl[:1]","d/test.jsonl"])");
  write("sft.yaml",
        "model_name_or_path: m\ndatasets:\n  - path: d\n    data_files: d/test.jsonl\n");
  EXPECT_THAT(refusal("trl sft --config sft.yaml"), HasSubstr("data_files is not supported"));
}

// The scripts of Hugging Face and LLaMA-Factory take the first records of a set.
TEST_F(PublishedCommands, TakeTheFirstRecords) {
  const std::string record = R"({"sentence": "a", "label": 1})";
  write("g.jsonl", record + "\n" + record + "\n" + record + "\n");
  const std::string glue =
      "run_glue.py --model_name_or_path m --train_file g.jsonl --validation_file g.jsonl "
      "--do_train "
      "--do_eval --output_dir out ";
  const ForeignCommand command = read(glue + "--max_train_samples 2 --max_eval_samples 1");
  EXPECT_EQ(key(command, "data.train"), "\"g.jsonl[:2]\"");
  EXPECT_EQ(key(command, "data.validation"), "\"g.jsonl[:1]\"");
  EXPECT_EQ(key(read(glue), "data.train"), "\"g.jsonl\"");
  EXPECT_EQ(key(read("run_glue.py --model_name_or_path m --train_file g.jsonl[1:] "
                     "--validation_file g.jsonl --do_train --output_dir out --max_train_samples 1"),
                "data.train"),
            "\"g.jsonl[1:2]\"");
  EXPECT_THAT(refusal(glue + "--max_train_samples 0"), HasSubstr("expected a number of records"));
  // Their other scripts count blocks of text, or draw pictures.
  EXPECT_THAT(refusal("run_clm.py --model_name_or_path m --train_file t.txt --do_train "
                      "--output_dir out --max_train_samples 2"),
              HasSubstr("blocks of text"));

  // Several files are one set.
  for (const char* part : {"s/train-0.jsonl", "s/train-1.jsonl"})
    write(part, record + "\n" + record + "\n");
  const std::string set =
      "run_classification.py --model_name_or_path m --dataset_name s --do_train "
      "--output_dir out ";
  EXPECT_EQ(key(read(set + "--max_train_samples 3"), "data.train"),
            R"(["s/train-0.jsonl","s/train-1.jsonl[0:1]"])");
  EXPECT_EQ(key(read(set + "--max_train_samples 2"), "data.train"), "\"s/train-0.jsonl\"");
  // The script shuffles before it takes the first records.
  EXPECT_THAT(refusal(set + "--shuffle_train_dataset --max_train_samples 2"),
              HasSubstr("draws records at random"));
  EXPECT_THAT(read(set + "--shuffle_train_dataset").notes,
              testing::Contains(HasSubstr("every epoch is shuffled")));

  write("data/dataset_info.json",
        R"({"a": {"file_name": "a.json"}, "b": {"file_name": "b.json"}})");
  for (const char* file : {"data/a.json", "data/b.json"})
    write(file, R"([{"instruction": "i", "input": "", "output": "o"}])");
  write("x.yaml",
        "model_name_or_path: m\nstage: sft\ndo_train: true\nfinetuning_type: full\ndataset: a,b\n"
        "max_samples: 1000\ntemplate: llama3\noutput_dir: out\n");
  EXPECT_EQ(key(read("llamafactory-cli train x.yaml"), "data.train"),
            R"(["data/a.json[:1000]","data/b.json[:1000]"])");
}

TEST_F(PublishedCommands, NameTheMembersOfMessages) {
  const auto with = [](const std::string& lines) {
    write("x.yml",
          "base_model: m\ndatasets:\n  - path: d\n    type: chat_template\n" + lines +
              "sequence_len: 64\nmicro_batch_size: 1\nnum_epochs: 1\nlearning_rate: 0.0002\n");
    return refusal(kAxolotl);
  };
  for (const char* known :
       {"    field_thinking: thinking\n    template_thinking_key: thinking\n",
        "    field_thinking: reasoning_content\n",
        "    message_property_mappings:\n      role: role\n      content: content\n",
        "    message_property_mappings:\n      role: from\n      content: value\n",
        "    roles:\n      user: [user, human]\n      assistant: [gpt, assistant]\n"
        "      system: [system]\n"})
    EXPECT_EQ(with(known), "accepted") << known;
  for (const auto& [lines, words] :
       {std::pair("    field_thinking: thoughts\n", "field_thinking thoughts"),
        std::pair("    message_property_mappings:\n      role: role\n      content: text\n",
                  "content text is not supported"),
        std::pair("    message_property_mappings:\n      role: from\n      content: content\n",
                  "role from with content content"),
        std::pair("    roles:\n      user: [customer]\n", "\"customer\" as the role user")})
    EXPECT_THAT(with(lines), HasSubstr(words)) << lines;
}

TEST_F(PublishedCommands, ChangeTheConfigurationOfTheModelWhereItIsBuilt) {
  write("m/config.json",
        R"({"model_type": "mixtral", "vocab_size": 64, "router_aux_loss_coef": 0.02})");
  axolotl("model_config:\n  output_router_logits: true\n");
  EXPECT_EQ(key(read(kAxolotl), "model.moe.losses.balance"), "0.02");
  axolotl("model_config:\n  output_router_logits: false\n");
  EXPECT_EQ(key(read(kAxolotl), "model.moe.losses.balance"), "0");
  axolotl("model_config:\n  vocab_size: 64\n");
  EXPECT_EQ(refusal(kAxolotl), "accepted") << "it says so already";
  axolotl("model_config:\n  hidden_size: 64\n");
  EXPECT_THAT(refusal(kAxolotl), HasSubstr("hidden_size is not supported"));
  axolotl("resize_token_embeddings_to_32x: true\n");
  EXPECT_EQ(refusal(kAxolotl), "accepted");
  write("m/config.json", R"({"model_type": "llama", "vocab_size": 65})");
  EXPECT_THAT(refusal(kAxolotl), HasSubstr("no multiple of 32"));
}

TEST_F(PublishedCommands, TrainAsAxolotlAndLlamaFactoryDo) {
  struct Row {
    const char* lines;
    const char* path;
    const char* value;
  };
  // Without the adapter of axolotl().
  const auto full = [](const std::string& lines) {
    write("x.yml",
          "base_model: m\ndatasets:\n  - path: d/train.jsonl\n    type: chat_template\n"
          "sequence_len: 64\nmicro_batch_size: 1\nnum_epochs: 1\nlearning_rate: 0.0002\n" +
              lines);
  };
  for (const Row& row : std::vector<Row>{
           {"optimizer: adamw_torch_4bit\n", "optimizer.type", "\"AdamW4bit\""},
           {"reinit_weights: true\n", "model.new_weights", "true"},
           {"dataset_exact_deduplication: true\n", "data.drop_duplicates", "true"},
           {"use_eaft: true\neaft_alpha: 2.0\n", "task.params.token_weights", "\"entropy\""},
           {"use_eaft: true\neaft_alpha: 2.0\n", "task.params.token_weight_params.alpha", "2.0"},
           {"use_eaft: true\n", "task.params.token_weight_params.scale", "1"},
           {"streaming: true\nmax_steps: 10\n", "data.streaming", "1"},
           {"unfrozen_parameters:\n  - ^lm_head.*\n  - model.layers.4[4-9]+.mlp\n",
            "optimizer.trained",
            R"(["^lm_head\\.*","^model\\.layers\\.4[4-9]+\\.mlp"])"},
           {"qat:\n  weight_dtype: int4\n  activation_dtype: int8\n  group_size: 64\n",
            "qat.group_size",
            "64"},
           {"qat:\n  weight_dtype: float8\n  activation_dtype: fp8\n", "qat.weights", "\"fp8\""},
           {"qat:\n  weight_dtype: mxfp4\n", "qat.activations", "\"mxfp4\""},
           {"qat:\n  weight_dtype: fp8\n  activation_dtype: fp8\n", "qat.activations", "\"fp8\""},
           {"qat:\n  weight_dtype: nvfp4\n  activation_dtype: nvfp4\n",
            "qat.activations",
            "\"none\""},
           {"qat:\n  weight_dtype: nvfp4\n  activation_dtype: fp8\n",
            "qat.activations",
            "\"none\""},
           {"qat:\n  weight_dtype: nvfp4\n  fake_quant_after_n_steps: 7\n",
            "qat.after_steps",
            "7"}}) {
    full(row.lines);
    EXPECT_EQ(key(read(kAxolotl), row.path), row.value) << row.lines;
  }
  write("x.yml",
        "base_model: m\ndatasets:\n  - path: d/train.jsonl\n    type: chat_template\n    "
        "drop_system_message: true\nsequence_len: 64\nmicro_batch_size: 1\nnum_epochs: 1\n"
        "learning_rate: 0.0002\n");
  EXPECT_EQ(key(read(kAxolotl), "task.params.drop_system"), "true");
  write("a/train.jsonl", R"({"instruction": "a", "output": "b", "system": "c"})");
  write("x.yml",
        "base_model: m\ndatasets:\n  - path: a/train.jsonl\n    type: alpaca\n    "
        "drop_system_message: true\nsequence_len: 64\nmicro_batch_size: 1\nnum_epochs: 1\n"
        "learning_rate: 0.0002\n");
  const ForeignCommand alpaca = read(kAxolotl);
  EXPECT_EQ(key(alpaca, "task.params.drop_system"), "none");
  EXPECT_THAT(alpaca.notes, testing::Contains(HasSubstr("drop_system_message has no effect")));
  axolotl("unfrozen_parameters:\n  - ^lm_head.*\n");
  EXPECT_EQ(key(read(kAxolotl), "optimizer.trained"), "none");
  full("unfrozen_parameters:\n  - ^model.embed_tokens.weight$[:32000]\n");
  EXPECT_THAT(refusal(kAxolotl), HasSubstr("trains some rows of a tensor"));
  full("qat:\n  weight_dtype: int4\n");
  EXPECT_THAT(refusal(kAxolotl), HasSubstr("rounds weights twice"));
  for (const char* inputs : {"", "  activation_dtype: int8\n"}) {
    full(std::string("qat:\n  weight_dtype: fp8\n") + inputs);
    EXPECT_THAT(refusal(kAxolotl), HasSubstr("fp8 weights with activation_dtype")) << inputs;
  }
  full("qat:\n  weight_dtype: int8\n");
  EXPECT_THAT(refusal(kAxolotl), HasSubstr("weight_dtype int8 is not supported"));

  write("data/x.json", "[]");
  write("data/dataset_info.json", R"({"mine": {"file_name": "x.json"}})");
  const auto factory = [](const std::string& lines) {
    write("f.yaml",
          "model_name_or_path: m\nstage: sft\ndo_train: true\nfinetuning_type: full\ndataset: "
          "mine\n" +
              lines);
    return read("llamafactory-cli train f.yaml");
  };
  EXPECT_EQ(key(factory("use_dft_loss: true\n"), "task.params.token_weights"), "\"probability\"");
  EXPECT_EQ(key(factory("use_eaft_loss: true\n"), "task.params.token_weights"), "\"entropy\"");
  const ForeignCommand asft = factory("use_asft_loss: true\nasft_alpha: 0.05\n");
  EXPECT_EQ(key(asft, "distill.teacher"), "\"m\"");
  EXPECT_EQ(key(asft, "distill.alpha"), "0.05");
  EXPECT_EQ(key(asft, "distill.label_weight"), "1");
  EXPECT_EQ(key(asft, "distill.temperature"), "1");
  const ForeignCommand muon = factory("use_muon: true\n");
  EXPECT_EQ(key(muon, "optimizer.type"), "\"Muon\"");
  EXPECT_EQ(key(muon, "optimizer.params.adjust_lr_fn"), "\"match_rms_adamw\"");
  EXPECT_EQ(key(muon, "optimizer.params.betas"), "[0.9,0.999]");
  EXPECT_EQ(key(muon, "optimizer.params.split_qkv"), "true");
  EXPECT_EQ(key(muon, "optimizer.decay_all"), "true");
  write("f.yaml",
        "model_name_or_path: m\nstage: sft\ndo_train: true\nfinetuning_type: lora\nlora_target: "
        "all\ndataset: mine\nuse_kt: true\n");
  EXPECT_EQ(key(read("llamafactory-cli train f.yaml"), "adapter.targets"),
            R"(".*_proj(_with_mqa)?")");

  write("m/config.json", R"({"model_type": "llama", "num_hidden_layers": 8})");
  write("f.yaml",
        "model_name_or_path: m\nstage: sft\ndo_train: true\nfinetuning_type: freeze\ndataset: "
        "mine\nfreeze_trainable_layers: 2\nuse_llama_pro: true\n");
  EXPECT_EQ(key(read("llamafactory-cli train f.yaml"), "optimizer.trained"), R"(["\\.(3|7)\\."])");
  const std::string expanded =
      "model_name_or_path: m\nstage: sft\ndo_train: true\nfinetuning_type: lora\ndataset: "
      "mine\nfreeze_trainable_layers: 2\nuse_llama_pro: true\n";
  write("f.yaml", expanded);
  const ForeignCommand everything = read("llamafactory-cli train f.yaml");
  EXPECT_EQ(key(everything, "adapter.layers"), "[3,7]");
  EXPECT_EQ(key(everything, "adapter.targets"), "none");  // all linear layers
  write("f.yaml", expanded + "use_kt: true\nlora_target: q_proj\n");
  EXPECT_EQ(key(read("llamafactory-cli train f.yaml"), "adapter.layers"), "[3,7]");
  write("f.yaml", expanded + "use_kt: true\n");
  EXPECT_THAT(refusal("llamafactory-cli train f.yaml"),
              HasSubstr("with use_kt and lora_target all"));

  write("f.yaml",
        "model_name_or_path: m\nstage: sft\ndo_train: true\nfinetuning_type: freeze\ndataset: "
        "mine\nfreeze_trainable_modules: mlp\nfreeze_extra_modules: norm\n");
  EXPECT_EQ(key(read("llamafactory-cli train f.yaml"), "optimizer.trained"),
            R"(["\\.(6|7)\\.mlp","norm"])");

  write("m/config.json", R"({"model_type": "llama"})");
  EXPECT_THAT(refusal("llamafactory-cli train f.yaml"), HasSubstr("no layer would be trained"));

  EXPECT_EQ(key(read(std::string(kSft) + "--loss_type dft"), "task.params.token_weights"),
            "\"probability\"");
  EXPECT_EQ(key(read(std::string(kSft) + "--eos_token <|im_end|>"), "model.from"), "\"m\"");
  write("m/tokenizer_config.json", R"({"chat_template": "{{ messages[0].content + eos_token }}"})");
  EXPECT_THAT(refusal(std::string(kSft) + "--eos_token <|im_end|>"),
              HasSubstr("a chat template that writes eos_token"));
}

TEST_F(PublishedCommands, ReachAWholeBatchByAccumulation) {
  axolotl("batch_size: 12\n");
  EXPECT_EQ(key(read(kAxolotl), "gradient_accumulation_steps"), "12");
  axolotl("batch_size: 12\ngradient_accumulation_steps: 3\n");
  const ForeignCommand both = read(kAxolotl);
  EXPECT_EQ(key(both, "gradient_accumulation_steps"), "3");
  EXPECT_THAT(both.notes, testing::Contains(HasSubstr("batch_size has no effect")));
}

// Without a number of ranks there are as many as the layout needs.
TEST_F(PublishedCommands, StartTheRanksThatTheirLayoutNeeds) {
  for (const auto& [flags, ranks] :
       {std::pair("", 0),
        std::pair("--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2", 4),
        std::pair("--context-parallel-size 2", 2)}) {
    const ForeignCommand command = read(std::string("deepspeed ") + kMegatron + flags);
    EXPECT_EQ(command.ranks.value_or(0), ranks) << flags;
  }
  EXPECT_EQ(read(std::string("torchrun --nproc_per_node 4 ") + kMegatron +
                 "--tensor-model-parallel-size 2")
                .ranks,
            4);
  axolotl("context_parallel_size: 2\n");
  EXPECT_EQ(read(kAxolotl).ranks, 2);
  // The slots of hosts are a number of ranks.
  EXPECT_EQ(read(std::string("deepspeed --hostfile hosts ") + kMegatron +
                 "--tensor-model-parallel-size 2")
                .ranks,
            std::nullopt);
}

TEST_F(PublishedCommands, DivideTheModelAsAccelerateIsTold) {
  const auto with = [](const std::string& lines) {
    write("a.yaml", "num_processes: 8\nparallelism_config:\n" + lines);
    return std::string("accelerate launch --config_file a.yaml ") +
           "run_clm.py --model_name_or_path m --train_file t.txt --do_train --output_dir out";
  };
  ForeignCommand command =
      read(with("  parallelism_config_tp_size: 2\n"
                "  parallelism_config_cp_size: 2\n"
                "  parallelism_config_dp_shard_size: 2\n"
                "  parallelism_config_dp_replicate_size: 1\n"));
  EXPECT_EQ(key(command, "parallel.tensor.size"), "2");
  EXPECT_EQ(key(command, "parallel.context.size"), "2");
  EXPECT_EQ(key(command, "zero_optimization.stage"), "3");
  command =
      read(with("  parallelism_config_sp_size: 4\n  parallelism_config_sp_backend: deepspeed\n"));
  EXPECT_EQ(key(command, "parallel.context.size"), "4");
  EXPECT_EQ(key(command, "parallel.context.mode"), "\"ulysses\"");
  EXPECT_THAT(refusal(with("  parallelism_config_sp_size: 2\n  parallelism_config_cp_size: 2\n")),
              HasSubstr("together with parallelism_config_cp_size"));
  command = read(with("  parallelism_config_tp_size: 1\n"));
  EXPECT_EQ(key(command, "parallel.tensor.size"), "none");
  EXPECT_THAT(refusal(with("  parallelism_config_xp_size: 2\n")),
              HasSubstr("xp_size is not supported"));
}

TEST_F(PublishedCommands, PunishAnswersWithoutAnEnd) {
  write("p/train.jsonl", R"({"prompt": "a"})");
  const ForeignCommand command = read(
      "ppo.py --model_name_or_path m --sft_model_path m --reward_model_path m --dataset_name p "
      "--missing_eos_penalty 1.0");
  EXPECT_THAT(key(command, "rl.rewards"), HasSubstr(R"("type":"missing_end","weight":1)"));
}

TEST_F(PublishedCommands, UseTheTokenizerOfGpt2ThatIsBuiltIn) {
  const std::string clm =
      "run_clm.py --model_type gpt2 --train_file t.txt --do_train --output_dir out ";
  EXPECT_EQ(key(read(clm + "--tokenizer_name gpt2"), "tokenizer.type"), "\"gpt2\"");
  EXPECT_EQ(key(read(clm + "--tokenizer_name openai-community/gpt2"), "tokenizer.type"),
            "\"gpt2\"");
  EXPECT_THAT(refusal(clm + "--tokenizer_name gpt3"), HasSubstr("no tokenizer of that name"));
}

TEST_F(PublishedCommands, OfMegatronMayTurnAPartOfEachHead) {
  const std::string rope = std::string(kMegatron) + "--position-embedding-type rope ";
  ForeignCommand command = read(rope + "--rotary-percent 0.5");
  EXPECT_EQ(key(command, "model.family"), "\"compose\"");
  EXPECT_EQ(key(command, "model.norm"), "\"layer_norm\"");
  EXPECT_EQ(key(command, "model.rotary_fraction"), "0.5");
  EXPECT_EQ(key(read(rope), "model.rotary_fraction"), "none");
  command =
      read(rope + "--normalization RMSNorm --swiglu --disable-bias-linear --rotary-percent 0.5");
  EXPECT_EQ(key(command, "model.family"), "\"compose\"");
  EXPECT_EQ(key(command, "model.norm"), "\"rms\"");
}

TEST_F(PublishedCommands, OfBertHaveItsTokenizer) {
  write("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\n");
  const std::string bert =
      "pretrain_bert.py --num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 16 "
      "--max-position-embeddings 16 --micro-batch-size 2 --global-batch-size 8 --train-iters 10 "
      "--lr 1e-3 --data-path t.txt --vocab-file vocab.txt --lr-decay-style cosine ";
  EXPECT_EQ(key(read(bert), "tokenizer.vocab"), "\"vocab.txt\"");
  EXPECT_EQ(key(read(bert), "model.vocab_size"), "128");
  // The name of the script counts, not that of its folder.
  write("vocab.json", R"({"a": 0, "b": 1})");
  EXPECT_EQ(key(read("albert/pretrain_gpt.py --num-layers 2 --hidden-size 32 "
                     "--num-attention-heads 4 --seq-length 16 --max-position-embeddings 16 "
                     "--micro-batch-size 2 --global-batch-size 8 --train-iters 10 --lr 1e-3 "
                     "--data-path t.txt --vocab-file vocab.json --merge-file merges.txt "
                     "--lr-decay-style cosine"),
                "tokenizer.type"),
            "\"gpt2\"");
}

// DeepSpeed-Chat's scripts start main.py in the folder of the step.
TEST_F(PublishedCommands, AreRecognisedByTheFolderInWhichTheyAreTyped) {
  const std::string options =
      "main.py --data_path data --data_split 2,4,4 --model_name_or_path m "
      "--per_device_train_batch_size 1 --max_seq_len 16 --learning_rate 1e-5 "
      "--num_train_epochs 1 --output_dir out";
  EXPECT_THAT(refusal("deepspeed " + options), HasSubstr("does not know"));
  for (const auto& [folder, program] :
       {std::pair("step1_supervised_finetuning", "DeepSpeed-Chat's step 1"),
        std::pair("step2_reward_model_finetuning", "DeepSpeed-Chat's step 2"),
        std::pair("step2_dpo_finetuning", "DeepSpeed-Chat's step 2 with DPO")}) {
    const std::filesystem::path before = std::filesystem::current_path();
    std::filesystem::create_directories(folder);
    std::filesystem::current_path(folder);
    std::filesystem::create_directories("m");
    write("m/config.json", R"({"model_type": "opt"})");
    std::string records;
    for (int i = 0; i < 40; ++i)
      records += R"({"prompt": "a", "chosen": "b", "rejected": "c"})"
                 "\n";
    write("data/train.jsonl", records);
    std::string said;
    try {
      said = read("deepspeed " + options).program;
    } catch (const Error& error) {
      said = error.what();
    }
    std::filesystem::current_path(before);
    EXPECT_EQ(said, program) << folder;
  }
  // Part of a folder's name is not the folder.
  std::filesystem::create_directories("my_step2_dpo_finetuning");
  std::filesystem::current_path("my_step2_dpo_finetuning");
  EXPECT_THAT(refusal("deepspeed " + options), HasSubstr("does not know"));
  std::filesystem::current_path("..");
}

TEST_F(PublishedCommands, HaveNumbersAsPythonWritesThem) {
  for (const auto& [typed, read_as] : {std::pair(".5", "0.5"), std::pair("0.5", "0.5")}) {
    const ForeignCommand command =
        read(std::string(kMegatron) + "--lr-warmup-fraction " + typed + " --min-lr .0001");
    EXPECT_EQ(key(command, "scheduler.params.lr_warmup_fraction"), read_as) << typed;
    EXPECT_EQ(key(command, "scheduler.params.min_lr"), "1e-04");
  }
}

TEST_F(PublishedCommands, LeaveTheScaleOfLossesToDeepSpeedsFile) {
  write("ds.json",
        R"({"train_batch_size": 8, "fp16": {"enabled": true, "loss_scale_window": 500,
            "initial_scale_power": 11, "min_loss_scale": 1}})");
  const ForeignCommand command =
      read(std::string("deepspeed ") + kMegatron + "--fp16 --deepspeed --deepspeed_config ds.json");
  EXPECT_EQ(key(command, "fp16.enabled"), "true");
  EXPECT_EQ(key(command, "fp16.initial_scale_power"), "11");
  for (const char* one : {"fp16.scaler", "fp16.initial_scale", "fp16.growth_interval"})
    EXPECT_EQ(key(command, one), "none") << one;
  EXPECT_EQ(key(read(std::string(kMegatron) + "--fp16"), "fp16.scaler"), "\"megatron\"");
}

TEST_F(PublishedCommands, GiveValuesWithEqualsSigns) {
  const ForeignCommand command = read(
      "run_clm.py --model_type gpt2 --train_file t.txt --do_train --config_overrides "
      "n_embd=32,n_layer=1");
  EXPECT_EQ(key(command, "model.hidden_size"), "32");
  EXPECT_EQ(key(command, "model.num_layers"), "1");
}

TEST_F(PublishedCommands, KnowTheColumnsOfSummaries) {
  write("m/config.json", R"({"model_type": "t5"})");
  write("cnn_dailymail/train.jsonl", R"({"article": "a", "highlights": "b"})");
  const std::string line =
      "run_summarization.py --model_name_or_path m --do_train --dataset_name cnn_dailymail "
      "--output_dir out ";
  ForeignCommand command = read(line);
  EXPECT_EQ(key(command, "task.params.source_field"), "\"article\"");
  EXPECT_EQ(key(command, "task.params.target_field"), "\"highlights\"");
  command = read(line + "--text_column id");
  EXPECT_EQ(key(command, "task.params.source_field"), "\"id\"");
}

TEST_F(PublishedCommands, NameTheLayoutsOfTrl) {
  for (const auto& [name, stage, ranks] : {std::tuple("zero1", "1", 8),
                                           std::tuple("zero2", "2", 8),
                                           std::tuple("zero3", "3", 8),
                                           std::tuple("fsdp2", "3", 8),
                                           std::tuple("multi_gpu", "0", 8),
                                           std::tuple("single_gpu", "none", 1)}) {
    const ForeignCommand command = read(kSft + std::string("--accelerate_config ") + name);
    EXPECT_EQ(key(command, "zero_optimization.stage"), stage) << name;
    EXPECT_EQ(command.ranks, ranks) << name;
  }
  EXPECT_EQ(read(std::string(kSft) + "--accelerate_config zero2 --num_processes 4").ranks, 4);
  EXPECT_THAT(refusal(std::string(kSft) + "--accelerate_config my.yaml"),
              HasSubstr("give the file to accelerate"));
}

TEST_F(PublishedCommands, HaveSectionsOfConvertersThatAreNotUsed) {
  if (!reads_toml()) GTEST_SKIP() << "built without toml++";
  write("x.toml",
        "[job]\ndump_folder = \"out\"\n\n[model]\nname = \"llama3\"\nflavor = \"debugmodel\"\n\n"
        "[training]\nseq_len = 64\nsteps = 10\ndataset = \"t.txt\"\n\n"
        "[quantize.linear.float8]\nenable_fsdp_float8_all_gather = false\n"
        "filter_fqns = [\"output\"]\n\n[quantize.grouped_mm.float8]\nfqns = [\"experts\"]\n");
  const std::string command = "torchrun -m torchtitan.train --job.config_file x.toml ";
  EXPECT_EQ(key(read(command), "trainer.max_steps"), "10");
  EXPECT_THAT(refusal(command + "--model.converters quantize.linear.float8"),
              HasSubstr("there is no such precision"));
}

}  // namespace
}  // namespace tessera::interop
