// SPDX-License-Identifier: Apache-2.0
// libFuzzer harness of every reader of files from outside. The reader is chosen by TESSERA_FUZZ,
// the bytes are put where it looks for them; whatever it throws must be an Error that names what is
// wrong. Build and run: fuzz/run.sh.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/checkpoint/foreign.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/torch_file.h"
#include "tessera/checkpoint/weights.h"
#include "tessera/data/token_file.h"

namespace {

namespace fs = std::filesystem;
using tessera::checkpoint::Weight;

void touch(const std::vector<Weight>& weights) {
  std::vector<std::byte> buffer;
  for (const Weight& weight : weights) {
    const std::int64_t count = std::min<std::int64_t>(weight.numel(), 1 << 16);
    buffer.resize(static_cast<std::size_t>(count) * tessera::size_of(weight.dtype));
    weight.copy(0, count, buffer.data());
    weight.copy(weight.numel() - count, weight.numel(), buffer.data());
  }
}

void touch(const fs::path& path) {
  const auto opened = tessera::checkpoint::open_foreign(path);
  if (!opened) return;
  std::vector<std::byte> buffer;
  for (const auto& tensor : opened->weights) {
    const auto numel = static_cast<std::int64_t>(tensor.bytes() / tessera::size_of(tensor.dtype));
    const std::int64_t count = std::min<std::int64_t>(numel, 1 << 16);
    buffer.resize(static_cast<std::size_t>(count) * tessera::size_of(tensor.dtype));
    tensor.read(numel - count, numel, buffer.data());
  }
}

struct Target {
  const char* file;  ///< where the bytes go
  void (*read)(const fs::path& folder);
};

const std::map<std::string, Target>& targets() {
  static const std::map<std::string, Target> all = {
      {"safetensors",
       {"x.safetensors",
        [](const fs::path& f) {
          touch(tessera::checkpoint::open_weight_file(f / "x.safetensors"));
        }}},
      {"torch",
       {"x.bin",
        [](const fs::path& f) {
          touch(tessera::checkpoint::read_torch_file(f / "x.bin").tensors);
        }}},
      {"index",
       {"model.safetensors.index.json",
        [](const fs::path& f) { touch(tessera::checkpoint::open_weights(f)); }}},
      {"manifest",
       {"manifest.json",
        [](const fs::path& f) { tessera::checkpoint::read_manifest(f / "manifest.json"); }}},
      {"tokens", {"x.idx", [](const fs::path& f) { tessera::data::TokenFile::open(f / "x.idx"); }}},
      {"llmc", {"x.bin", [](const fs::path& f) { touch(f / "x.bin"); }}},
      {"llmc-tokens",
       {"x.bin", [](const fs::path& f) { tessera::data::TokenFile::open(f / "x.bin"); }}},
      {"deepspeed",
       {"global_step5/mp_rank_00_model_states.pt", [](const fs::path& f) { touch(f); }}},
      {"deepspeed-optimizer",
       {"global_step5/zero_pp_rank_0_mp_rank_00_optim_states.pt",
        [](const fs::path& f) { touch(f); }}}};
  return all;
}

const Target& chosen() {
  static const Target& target = [&]() -> const Target& {
    const char* name = std::getenv("TESSERA_FUZZ");
    const auto found = targets().find(name == nullptr ? "" : name);
    if (found == targets().end()) std::abort();
    return found->second;
  }();
  return target;
}

/// A folder of this process in which what surrounds the file lies already.
const fs::path& folder() {
  static const fs::path made = [] {
    const char* around = std::getenv("TESSERA_FUZZ_AROUND");
    fs::path path = "/dev/shm/tessera-fuzz-" + std::to_string(::getpid());
    fs::create_directories(path);
    if (around != nullptr && *around != '\0') {
      fs::copy(around, path, fs::copy_options::recursive | fs::copy_options::overwrite_existing);
      for (const auto& entry : fs::recursive_directory_iterator(path))
        fs::permissions(entry.path(), fs::perms::owner_all);
    }
    return path;
  }();
  return made;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const fs::path file = folder() / chosen().file;
  fs::create_directories(file.parent_path());
  fs::remove(file);
  std::ofstream(file, std::ios::binary)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  try {
    chosen().read(folder());
  } catch (const tessera::Error& error) {
    if (error.kind() == tessera::Error::Kind::Bug) std::abort();
  }
  return 0;
}
