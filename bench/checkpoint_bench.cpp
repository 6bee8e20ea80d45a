// SPDX-License-Identifier: Apache-2.0
// Measures saving and loading a model of 1 GB and plain sequential I/O, for run_checkpoint.sh.
//
//   checkpoint_bench FOLDER     (a new folder on the disk to be measured; it is not removed)
//
// Prints one JSON line per measurement. Plain I/O writes and reads the same bytes in calls of 1 MiB
// and syncs once; a save includes checksums, syncs, manifest and rename; a load verifies every byte
// and copies it to where a run needs it. "cold": the file was dropped from the kernel's page cache
// before; "warm": it was read just before.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/philox.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/interop/weights.h"

namespace {

namespace fs = std::filesystem;
using tessera::checkpoint::Checkpoint;
using tessera::checkpoint::PieceBytes;

constexpr std::size_t kCallBytes = std::size_t{1} << 20;

struct Tensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> bytes;
};

/// A GPT-2 of 18 layers of width 1,024 in fp32: 1.11 GB.
std::vector<Tensor> model() {
  constexpr std::int64_t kWidth = 1024;
  std::vector<Tensor> out = {{"wte.weight", {50257, kWidth}, {}},
                             {"wpe.weight", {1024, kWidth}, {}}};
  for (int layer = 0; layer < 18; ++layer) {
    const std::string h = fmt::format("h.{}.", layer);
    out.push_back({h + "ln_1.weight", {kWidth}, {}});
    out.push_back({h + "attn.qkv.weight", {3 * kWidth, kWidth}, {}});
    out.push_back({h + "attn.proj.weight", {kWidth, kWidth}, {}});
    out.push_back({h + "mlp.fc.weight", {4 * kWidth, kWidth}, {}});
    out.push_back({h + "mlp.proj.weight", {kWidth, 4 * kWidth}, {}});
  }
  const tessera::Philox noise{11};
  std::uint64_t at = 0;
  for (Tensor& tensor : out) {
    std::size_t size = 4;
    for (const std::int64_t dim : tensor.shape)
      size *= static_cast<std::size_t>(dim);
    tensor.bytes.resize(size);
    for (std::size_t i = 0; i + 16 <= size; i += 16) {
      const tessera::Philox::Block block = noise(at++);
      std::memcpy(tensor.bytes.data() + i, block.data(), 16);
    }
  }
  return out;
}

std::vector<PieceBytes> pieces_of(std::vector<Tensor>& tensors) {
  std::vector<PieceBytes> out;
  for (Tensor& tensor : tensors) {
    const auto numel = static_cast<std::int64_t>(tensor.bytes.size() / 4);
    out.push_back({tensor.name,
                   tessera::DType::F32,
                   tensor.shape,
                   {tessera::mesh::whole(tensor.shape), 0, numel},
                   tensor.bytes});
  }
  return out;
}

int opened(const fs::path& path, int flags) {
  const int fd = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
  TESSERA_REQUIRE(fd >= 0, Io, fmt::format("cannot open {}", path.string()), "");
  return fd;
}

void drop(const fs::path& path) {
  const int fd = opened(path, O_RDONLY);
  ::fdatasync(fd);
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  ::close(fd);
}

void plain_write(const fs::path& path, const std::vector<Tensor>& tensors) {
  const int fd = opened(path, O_WRONLY | O_CREAT | O_EXCL);
  for (const Tensor& tensor : tensors) {
    for (std::size_t at = 0; at < tensor.bytes.size();) {
      const ssize_t done =
          ::write(fd, tensor.bytes.data() + at, std::min(kCallBytes, tensor.bytes.size() - at));
      TESSERA_REQUIRE(done > 0, Io, "a write failed", "");
      at += static_cast<std::size_t>(done);
    }
  }
  TESSERA_REQUIRE(::fsync(fd) == 0, Io, "fsync failed", "");
  ::close(fd);
}

void plain_read(const fs::path& path) {
  static std::vector<std::byte> buffer(kCallBytes);
  const int fd = opened(path, O_RDONLY);
  while (::read(fd, buffer.data(), buffer.size()) > 0) {
  }
  ::close(fd);
}

/// Loads another program's weights as model.from does.
void read_weights(const fs::path& path, std::vector<Tensor>& into) {
  for (const auto& weight : tessera::interop::open_weight_file(path)) {
    const auto found = std::find_if(
        into.begin(), into.end(), [&](const Tensor& t) { return t.name == weight.name; });
    weight.copy(0, weight.numel(), found->bytes.data());
  }
}

template <class Work>
void timed(const char* what, const char* cache, std::uint64_t bytes, Work work) {
  const double begin = tessera::now_s();
  work();
  const double seconds = tessera::now_s() - begin;
  std::printf("%s\n",
              fmt::format(R"({{"what":"{}","cache":"{}","seconds":{:.3f},"gbs":{:.3f}}})",
                          what,
                          cache,
                          seconds,
                          static_cast<double>(bytes) / seconds / 1e9)
                  .c_str());
  std::fflush(stdout);
}

void run(const fs::path& folder) {
  std::vector<Tensor> tensors = model();
  std::uint64_t bytes = 0;
  for (const Tensor& tensor : tensors)
    bytes += tensor.bytes.size();
  fs::create_directory(folder);
  const fs::path plain = folder / "plain";
  fs::path saved;
  const auto write = [&] { plain_write(plain, tensors); };
  const auto save = [&] {
    tessera::checkpoint::Meta meta;
    meta.step = 1;
    meta.config = meta.extra = tessera::json::Value::object();
    saved = tessera::checkpoint::save(folder / "checkpoints", meta, pieces_of(tensors), {});
  };
  timed("plain write", "-", bytes, write);
  timed("tessera save", "-", bytes, save);
  fs::remove(plain);
  fs::remove_all(saved);
  timed("tessera save", "-", bytes, save);
  timed("plain write", "-", bytes, write);
  fs::remove(plain);
  const fs::path shard = saved / "rank-00000.safetensors";
  const std::vector<Tensor> written = tensors;
  for (const char* cache : {"cold", "warm", "cold", "warm"}) {
    const auto prepare = [&] {
      if (cache == std::string("cold")) drop(shard);
    };
    prepare();
    timed("plain read", cache, bytes, [&] { plain_read(shard); });
    prepare();
    timed("tessera load", cache, bytes, [&] { Checkpoint(saved).load(pieces_of(tensors)); });
    prepare();
    timed("tessera model.from", cache, bytes, [&] { read_weights(shard, tensors); });
  }
  for (std::size_t i = 0; i < tensors.size(); ++i)
    TESSERA_REQUIRE(tensors[i].bytes == written[i].bytes, Bug, "another model was loaded", "");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: checkpoint_bench FOLDER\n");
    return 2;
  }
  try {
    run(argv[1]);
  } catch (const tessera::Error& error) {
    std::fprintf(stderr, "%s\n", error.text().c_str());
    return 1;
  }
  return 0;
}
