// SPDX-License-Identifier: Apache-2.0
// Every reader of files from outside: where it looks for its bytes, and what is done with what it
// gives. Both the fuzzer (readers.cpp) and the replay of its corpus (tests/cli/corpus_test.cpp)
// call them here.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/foreign.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/torch_file.h"
#include "tessera/checkpoint/torch_value.h"
#include "tessera/checkpoint/weights.h"
#include "tessera/data/token_file.h"

namespace tessera::fuzz {

namespace fs = std::filesystem;

/// Elements of one tensor that are read at most: strides of zero may make it look larger than the
/// file.
inline constexpr std::int64_t kTouched = 1 << 16;

inline void touch(const std::vector<checkpoint::Weight>& weights) {
  std::vector<std::byte> buffer;
  for (const checkpoint::Weight& weight : weights) {
    const std::int64_t count = std::min(weight.numel(), kTouched);
    buffer.resize(static_cast<std::size_t>(count) * size_of(weight.dtype));
    weight.copy(0, count, buffer.data());
    weight.copy(weight.numel() - count, weight.numel(), buffer.data());
  }
}

inline void touch(const fs::path& path) {
  const auto opened = checkpoint::open_foreign(path);
  if (!opened) return;
  std::vector<std::byte> buffer;
  for (const auto& tensor : opened->weights) {
    const auto numel = static_cast<std::int64_t>(tensor.bytes() / size_of(tensor.dtype));
    const std::int64_t count = std::min(numel, kTouched);
    buffer.resize(static_cast<std::size_t>(count) * size_of(tensor.dtype));
    tensor.read(numel - count, numel, buffer.data());
  }
}

/// A manifest whose seal fits, as whoever forges one would make it: else nothing behind it is met.
inline void seal(const fs::path& manifest) {
  const std::string text = files::read(manifest);
  const std::string body = text.substr(0, text.rfind("\"checksum\""));
  const std::string sum = files::hex64(files::xxh3(std::as_bytes(std::span(body))));
  std::ofstream(manifest, std::ios::binary) << body << "\"checksum\": \"xxh3:" << sum << "\"\n}\n";
}

/// A universal checkpoint's one parameter as stage 3 leaves it: bare and flat, 6 elements; and a
/// copy of it under another name, which has no moments.
inline void write_flat(const fs::path& zero) {
  const auto read = [](std::int64_t begin, std::int64_t end, std::byte* out) {
    std::fill_n(out, static_cast<std::size_t>(end - begin) * sizeof(float), std::byte{1});
  };
  for (const char* file : {"w/fp32.pt", "w/exp_avg.pt", "copy/fp32.pt"}) {
    if (fs::exists(zero / file)) continue;
    fs::create_directories((zero / file).parent_path());
    checkpoint::write_torch_file(zero / file,
                                 checkpoint::TorchValue::tensor({"", DType::F32, {6}, read, {}}));
  }
}

struct Target {
  const char* file;  ///< where the bytes go
  void (*read)(const fs::path& folder);
  const char* around;  ///< a recorded folder that surrounds the file; empty: none
};

inline const std::map<std::string, Target>& targets() {
  static const std::map<std::string, Target> all = {
      {"safetensors",
       {"x.safetensors",
        [](const fs::path& f) { touch(checkpoint::open_weight_file(f / "x.safetensors")); },
        ""}},
      {"torch",
       {"x.bin",
        [](const fs::path& f) { touch(checkpoint::read_torch_file(f / "x.bin").tensors); },
        ""}},
      {"index",
       {"model.safetensors.index.json",
        [](const fs::path& f) { touch(checkpoint::open_weights(f)); },
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
        "interop/deepspeed_z3_bf16"}}};
  return all;
}

/// A copy of what surrounds the target's file, from the recorded folder `reference`.
inline void surround(const Target& target, const fs::path& reference, const fs::path& folder) {
  fs::create_directories((folder / target.file).parent_path());
  if (*target.around == '\0') return;
  fs::copy(reference / target.around,
           folder,
           fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    fs::permissions(entry.path(), fs::perms::owner_all);
}

/// Has the bytes read. What is wrong with them must be told by an Error that is not of our making;
/// anything else goes on to the caller.
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
