// SPDX-License-Identifier: Apache-2.0
// Every reader of external files, with the place of the file that it reads and the use of the
// result. Both the fuzzer (readers.cpp) and the replay of its corpus (tests/cli/corpus_test.cpp)
// use these targets.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/config/json.h"
#include "tessera/data/images/image.h"
#include "tessera/data/images/preprocess.h"
#include "tessera/data/json_line.h"
#include "tessera/data/records.h"
#include "tessera/data/token_file.h"
#include "tessera/interop/deepspeed/experts.h"
#include "tessera/interop/foreign.h"
#include "tessera/interop/foreign_write.h"
#include "tessera/interop/huggingface/quantized_weights.h"
#include "tessera/interop/onnx/file.h"
#include "tessera/interop/torch/file.h"
#include "tessera/interop/torch/value.h"
#include "tessera/interop/weights.h"
#include "tessera/interop/yaml.h"
#include "tessera/report/expert_loads.h"
#include "tessera/text/chat/chat_template.h"
#include "tessera/text/tokenizer.h"

namespace tessera::fuzz {

namespace fs = std::filesystem;

/// Maximum number of elements that are read from one tensor; with strides of zero, a tensor may
/// appear larger than its file.
inline constexpr std::int64_t kTouched = 1 << 16;

inline void touch(const std::vector<interop::Weight>& weights) {
  std::vector<std::byte> buffer;
  for (const interop::Weight& weight : weights) {
    const std::int64_t count = std::min(weight.numel(), kTouched);
    buffer.resize(static_cast<std::size_t>(count) * size_of(weight.dtype));
    weight.copy(0, count, buffer.data());
    weight.copy(weight.numel() - count, weight.numel(), buffer.data());
  }
}

inline void touch(const std::vector<checkpoint::StreamedTensor>& tensors) {
  std::vector<std::byte> buffer;
  for (const auto& tensor : tensors) {
    const auto numel = static_cast<std::int64_t>(tensor.bytes() / size_of(tensor.dtype));
    const std::int64_t count = std::min(numel, kTouched);
    buffer.resize(static_cast<std::size_t>(count) * size_of(tensor.dtype));
    tensor.read(numel - count, numel, buffer.data());
  }
}

inline void touch(const fs::path& path) {
  const auto opened = interop::open_foreign(path);
  if (opened) touch(opened->weights);
}

/// A manifest with a correct checksum, as an attacker would write it, so that later checks run.
inline void seal(const fs::path& manifest) {
  const std::string text = files::read(manifest);
  const std::string body = text.substr(0, text.rfind("\"checksum\""));
  const std::string sum = files::hex64(files::xxh3(std::as_bytes(std::span(body))));
  std::ofstream(manifest, std::ios::binary) << body << "\"checksum\": \"xxh3:" << sum << "\"\n}\n";
}

inline checkpoint::StreamedTensor ones(const std::string& name, std::vector<std::int64_t> shape) {
  const auto read = [](std::int64_t begin, std::int64_t end, std::byte* out) {
    std::fill_n(out, static_cast<std::size_t>(end - begin) * sizeof(float), std::byte{1});
  };
  return {name, DType::F32, std::move(shape), read, {}};
}

/// optimizer_000005.pth of two parameters, w [2, 3] and b [3], which is stored next to the file of
/// their model.
inline void write_loop_optimizer(const fs::path& folder) {
  if (fs::exists(folder / "optimizer_000005.pth")) return;
  interop::Foreign training;
  training.weights = {ones("w", {2, 3}), ones("b", {3})};
  training.state = {{"exp_avg", training.weights}, {"exp_avg_sq", training.weights}};
  interop::write_torch_loop(
      folder / "spare.pth", folder / "optimizer_000005.pth", training, [](std::uint64_t) {});
}

/// Stage 3 on two ranks, one parameter w of 5 elements: all files but rank 0's optimizer.
inline void write_stage_3(const fs::path& folder) {
  using interop::TorchValue;
  if (fs::exists(folder / "zero_pp_rank_0_mp_rank_00_model_states.pt")) return;
  const TorchValue shapes = TorchValue::list({TorchValue::ordered({{"w", TorchValue::size({5})}})});
  const TorchValue model = TorchValue::dict({{"module", TorchValue::ordered({})},
                                             {"param_shapes", shapes},
                                             {"global_steps", TorchValue::integer(5)}});
  const auto flat = [] { return TorchValue::tensor(ones("", {3})); };
  const TorchValue moments = TorchValue::dict(
      {{"exp_avg", flat()}, {"exp_avg_sq", flat()}, {"step", TorchValue::integer(5)}});
  const TorchValue state =
      TorchValue::dict({{"state", TorchValue::dict({{"0", moments}}, /*numbered=*/true)}});
  const TorchValue optimizer = TorchValue::dict({{"fp32_flat_groups", TorchValue::list({flat()})},
                                                 {"optimizer_state_dict", state},
                                                 {"partition_count", TorchValue::integer(2)}});
  for (const char* rank : {"0", "1"}) {
    const std::string name = std::string("zero_pp_rank_") + rank + "_mp_rank_00_model_states.pt";
    interop::write_torch_file(folder / name, model);
  }
  interop::write_torch_file(folder / "zero_pp_rank_1_mp_rank_00_optim_states.pt",
                            TorchValue::dict({{"optimizer_state_dict", optimizer}}));
}

/// The model states of a checkpoint with one layer of two experts, and the file of expert 1.
inline void write_experts(const fs::path& folder) {
  using interop::TorchValue;
  if (fs::exists(folder / "mp_rank_00_model_states.pt")) return;
  const TorchValue module = TorchValue::ordered(
      {{"h.mlp.deepspeed_moe.gate.wg.weight", TorchValue::tensor(ones("", {2, 3}))}});
  const TorchValue counts = TorchValue::list({TorchValue::integer(2)});
  interop::write_torch_file(
      folder / "mp_rank_00_model_states.pt",
      TorchValue::dict(
          {{"module", module}, {"num_experts", counts}, {"global_steps", TorchValue::integer(5)}}));
  interop::write_torch_file(
      folder / "layer_0_expert_1_mp_rank_00_model_states.pt",
      TorchValue::dict({{"h.mlp.deepspeed_moe.experts.deepspeed_experts.1.up.weight",
                         TorchValue::tensor(ones("", {3, 3}))}}));
}

/// Lines with names of files and tensors, and one with num_experts, "[2, 4]". All files of experts
/// are the same one.
inline void place_experts(const fs::path& folder) {
  namespace deepspeed = interop::deepspeed;
  if (!fs::exists(folder / "expert.pt"))
    interop::write_torch_file(
        folder / "expert.pt",
        interop::TorchValue::dict({{"up.weight", interop::TorchValue::tensor(ones("", {3, 3}))}}));
  deepspeed::ExpertFiles files;
  std::vector<checkpoint::StreamedTensor> tensors;
  json::Value counts;
  std::string names = files::read(folder / "names.txt");
  for (std::size_t begin = 0; begin < names.size();) {
    const std::size_t end = std::min(names.find('\n', begin), names.size());
    const std::string line = names.substr(begin, end - begin);
    begin = end + 1;
    if (line.starts_with("[")) {
      counts = json::parse_strict(line, "num_experts");
    } else if (const auto place = deepspeed::expert_place_of(line)) {
      files.emplace(*place, folder / "expert.pt");
    } else if (!deepspeed::expert_optimizer_of(line)) {
      tensors.push_back(ones(line, {1}));
    }
  }
  deepspeed::add_experts(files, &counts, folder, tensors);
  touch(tensors);
}

/// Reads the loads of experts as the page and the doctor do.
inline void read_loads(const fs::path& run) {
  const report::ExpertLoads loads = report::read_expert_loads(run);
  (void)report::experts_plot(loads);
  (void)report::expert_findings(loads);
  for (const report::LayerLoads& layer : loads.layers) {
    if (layer.total() < 0 || !(layer.unevenness() >= 0) || !(layer.relative_entropy() >= 0) ||
        !(layer.dropped_share() >= 0))
      throw std::logic_error("loads that are no numbers");
  }
}

/// A vocabulary of all bytes and end of text, with the single merge "ab".
inline void write_vocabulary(const fs::path& folder) {
  if (fs::exists(folder / "vocab.json")) return;
  json::Value vocab =
      *json::parse_strict(text::byte_tokenizer_json(), "bytes").find("model")->find("vocab");
  // GPT-2 writes byte 0 as a letter.
  std::erase_if(vocab.members(),
                [](const auto& member) { return member.second.as_integer() == 0; });
  vocab["\u0100"] = json::Value::integer(0);
  vocab["ab"] = json::Value::integer(256);
  vocab["<|endoftext|>"] = json::Value::integer(257);
  std::ofstream(folder / "vocab.json", std::ios::binary) << vocab.dump();
}

/// Checks that an accepted tokenizer decodes every text to the original. A tokenizer read from "any
/// file" is exempt because it may normalize texts.
inline void encode(const fs::path& folder) {
  const text::TokenizerPtr tokenizer = text::tokenizer_from_folder(folder);
  for (const std::string text : {"", "abab ab's  12\n", "\xC3\xA4\xFF<|endoftext|>"}) {
    std::vector<std::int32_t> ids;
    tokenizer->encode(text, ids);
    const bool same = tokenizer->decode(ids) == text;
    if (!same && tokenizer->name() != "file")
      throw std::logic_error("a text that came back as another");
  }
}

/// Reads records with and without bad ones.
inline void read_records(const fs::path& path) {
  data::RecordOptions options;
  options.skip_bad = true;
  options.map = {{"text", "a.b"}};
  const auto ignore = [](const data::Record& record) {
    if (record.value.members().empty()) record.refuse("no field", "");
  };
  data::for_each_record({path.string()}, options, ignore);
  options.skip_bad = false;
  options.replace_invalid_utf8 = true;
  data::for_each_record({path.string()}, options, ignore);
}

/// Reads every line as `tokenize` does.
inline void read_lines(std::string_view file) {
  for (std::size_t begin = 0; begin <= file.size();) {
    const std::size_t end = std::min(file.find('\n', begin), file.size());
    const std::string_view line = file.substr(begin, end - begin);
    begin = end + 1;
    if (text::find_invalid_utf8(line)) continue;
    for (const bool replace : {false, true}) {
      std::string out;
      std::int64_t replaced = 0;
      const auto problem = data::read_text_field(line, "text", replace, out, replaced);
      if (!problem && text::find_invalid_utf8(out)) throw std::logic_error("a text of no UTF-8");
      if (problem && problem->offset > line.size()) throw std::logic_error("a place past its line");
    }
  }
}

/// Decodes an image and makes a small one of it.
inline void see(const fs::path& path) {
  const files::Mapped file(path);
  const data::images::Image image = data::images::decode_image(file.bytes(), path.string());
  std::vector<float> pixels(3 * 8 * 8);
  data::images::preprocess(image, data::images::default_preprocessing(8), path.string(), pixels);
}

/// Renders a conversation with the bytes as a chat template, in little time and memory.
inline void render_chat(const fs::path& folder) {
  const json::Value messages = json::parse_strict(
      R"([{"role":"system","content":"s"},{"role":"user","content":" \u00fc<b>\n"},)"
      R"({"role":"assistant","content":"a","tool_calls":[{"function":{"name":"f"}}]}])",
      "messages");
  text::chat::RenderOptions options;
  options.tools = json::parse_strict(R"([{"function":{"name":"f"}}])", "tools");
  options.limits.steps = 200'000;
  options.limits.bytes = 16 << 20;
  options.now = 0;
  const auto chat = text::chat::find_chat_template(folder);
  if (!chat) return;
  const text::chat::Conversation made = chat->render(messages, options);
  for (const auto& [begin, end] : made.assistant) {
    if (begin > end || end > made.text.size()) throw std::logic_error("a span outside of the text");
  }
}

/// A universal checkpoint of stage 3 with one bare and flat parameter of 6 elements, and a copy of
/// it under another name, which has no moments.
inline void write_flat(const fs::path& zero) {
  for (const char* file : {"w/fp32.pt", "w/exp_avg.pt", "copy/fp32.pt"}) {
    if (fs::exists(zero / file)) continue;
    fs::create_directories((zero / file).parent_path());
    interop::write_torch_file(zero / file, interop::TorchValue::tensor(ones("", {6})));
  }
}

struct Target {
  const char* file;  ///< file to which the fuzzed bytes are written
  void (*read)(const fs::path& folder);
  const char* around;  ///< recorded folder that contains the file; empty: none
};

inline const std::map<std::string, Target>& targets() {
  static const std::map<std::string, Target> all = {
      {"safetensors",
       {"x.safetensors",
        [](const fs::path& f) { touch(interop::open_weight_file(f / "x.safetensors")); },
        ""}},
      {"quantized",
       {"x.safetensors",
        [](const fs::path& f) {
          touch(interop::plain_weights(interop::open_weight_file(f / "x.safetensors")));
        },
        ""}},
      {"torch",
       {"x.bin",
        [](const fs::path& f) { touch(interop::read_torch_file(f / "x.bin").tensors); },
        ""}},
      {"index",
       {"model.safetensors.index.json",
        [](const fs::path& f) { touch(interop::open_weights(f)); },
        "models/llama_bf16_sharded"}},
      {"manifest",
       {"manifest.json",
        [](const fs::path& f) {
          seal(f / "manifest.json");
          checkpoint::check_cover(
              checkpoint::read_manifest(f / "manifest.json"), Error::Kind::Format, "manifest.json");
        },
        ""}},
      {"tokens",
       {"x.idx",
        [](const fs::path& f) {
          if (!fs::exists(f / "x.bin")) std::ofstream(f / "x.bin") << std::string(64, '\1');
          data::TokenFile::open(f / "x.idx");
        },
        ""}},
      {"gguf", {"x.gguf", [](const fs::path& f) { touch(f / "x.gguf"); }, ""}},
      {"nanogpt", {"ckpt.pt", [](const fs::path& f) { touch(f / "ckpt.pt"); }, ""}},
      {"onnx", {"x.onnx", [](const fs::path& f) { (void)interop::read_onnx(f / "x.onnx"); }, ""}},
      {"llmc", {"x.bin", [](const fs::path& f) { touch(f / "x.bin"); }, ""}},
      {"llmc-tokens", {"x.bin", [](const fs::path& f) { data::TokenFile::open(f / "x.bin"); }, ""}},
      {"megatron",
       {"iter_0000012/mp_rank_00/model_optim_rng.pt",
        [](const fs::path& f) { touch(f / "iter_0000012"); },
        ""}},
      {"modelcenter", {"pytorch_model.pt", [](const fs::path& f) { touch(f); }, ""}},
      {"torch-loop",
       {"optimizer_000005.pth", [](const fs::path& f) { touch(f); }, "interop/torch_tutorial"}},
      {"deepspeed",
       {"global_step5/mp_rank_00_model_states.pt",
        [](const fs::path& f) { touch(f); },
        "interop/deepspeed_z1_fp32"}},
      {"deepspeed-optimizer",
       {"global_step5/zero_pp_rank_0_mp_rank_00_optim_states.pt",
        [](const fs::path& f) { touch(f); },
        "interop/deepspeed_z1_fp32"}},
      {"universal", {"ds/zero/w/fp32.pt", [](const fs::path& f) { touch(f / "ds"); }, ""}},
      {"universal-states",
       {"ds/mp_rank_00_model_states.pt",
        [](const fs::path& f) {
          write_flat(f / "ds/zero");
          touch(f / "ds");
        },
        ""}},
      {"deepspeed-sharded",
       {"global_step5/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
        [](const fs::path& f) { touch(f); },
        "interop/deepspeed_z3_bf16"}},
      {"torch-loop-model",
       {"model_000005.pth",
        [](const fs::path& f) {
          write_loop_optimizer(f);
          touch(f);
        },
        ""}},
      {"deepspeed-stage3",
       {"zero_pp_rank_0_mp_rank_00_optim_states.pt",
        [](const fs::path& f) {
          write_stage_3(f);
          touch(f);
        },
        ""}},
      {"deepspeed-experts",
       {"ds/layer_0_expert_0_mp_rank_00_model_states.pt",
        [](const fs::path& f) {
          write_experts(f / "ds");
          touch(f / "ds");
        },
        ""}},
      {"deepspeed-expert-names", {"names.txt", place_experts, ""}},
      {"expert-loads", {"experts.json", read_loads, ""}},
      {"deepspeed-sharded-model",
       {"global_step5/zero_pp_rank_0_mp_rank_00_model_states.pt",
        [](const fs::path& f) { touch(f); },
        "interop/deepspeed_z3_bf16"}},
      {"vocab",
       {"vocab.json",
        [](const fs::path& f) {
          if (!fs::exists(f / "merges.txt"))
            std::ofstream(f / "merges.txt") << "#version: 0.2\na b\n";
          encode(f);
        },
        ""}},
      {"merges",
       {"merges.txt",
        [](const fs::path& f) {
          write_vocabulary(f);
          encode(f);
        },
        ""}},
      {"bert-vocabulary", {"vocab.txt", [](const fs::path& f) { encode(f); }, ""}},
      {"sentencepiece", {"tokenizer.model", [](const fs::path& f) { encode(f); }, ""}},
      {"tiktoken", {"cl100k_base.tiktoken", [](const fs::path& f) { encode(f); }, ""}},
      {"tokenizer-settings",
       {"tokenizer_config.json",
        [](const fs::path& f) {
          if (!fs::exists(f / "vocab.txt"))
            std::ofstream(f / "vocab.txt") << "[UNK]\n[CLS]\n[SEP]\na\n##b\n";
          encode(f);
        },
        ""}},
      {"tokenizer", {"tokenizer.json", [](const fs::path& f) { encode(f); }, ""}},
      {"chat", {"chat_template.jinja", [](const fs::path& f) { render_chat(f); }, ""}},
      {"image", {"x.png", [](const fs::path& f) { see(f / "x.png"); }, ""}},
      {"records", {"x.json", [](const fs::path& f) { read_records(f / "x.json"); }, ""}},
      {"arrow", {"x.arrow", [](const fs::path& f) { read_records(f / "x.arrow"); }, ""}},
      {"parquet", {"x.parquet", [](const fs::path& f) { read_records(f / "x.parquet"); }, ""}},
      {"table", {"x.csv", [](const fs::path& f) { read_records(f / "x.csv"); }, ""}},
      {"jsonl", {"x.jsonl", [](const fs::path& f) { read_lines(files::read(f / "x.jsonl")); }, ""}},
      {"yaml",
       {"x.yaml", [](const fs::path& f) { interop::read_settings((f / "x.yaml").string()); }, ""}},
      {"toml",
       {"x.toml", [](const fs::path& f) { interop::read_settings((f / "x.toml").string()); }, ""}},
      {"python-literals",
       {"x.py", [](const fs::path& f) { interop::read_settings((f / "x.py").string()); }, ""}}};
  return all;
}

/// Copies the files around the target's file from the recorded folder `reference`.
inline void surround(const Target& target, const fs::path& reference, const fs::path& folder) {
  fs::create_directories((folder / target.file).parent_path());
  if (*target.around == '\0') return;
  fs::copy(reference / target.around,
           folder,
           fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    fs::permissions(entry.path(), fs::perms::owner_all);
}

/// Reads the bytes. Invalid bytes must be reported by an Error of a kind other than Bug; any other
/// exception is passed to the caller.
inline void feed(const Target& target, const fs::path& folder, std::string_view bytes) {
  const fs::path file = folder / target.file;
  fs::remove(file);
  std::ofstream(file, std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  try {
    target.read(folder);
  } catch (const Error& error) {
    if (error.kind() == Error::Kind::Bug) throw;
  }
}

}  // namespace tessera::fuzz
