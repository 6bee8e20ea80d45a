// SPDX-License-Identifier: Apache-2.0
#include "tessera/checkpoint/parts.h"

#include <memory>
#include <string>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/checkpoint/archive.h"

namespace tessera::checkpoint {
namespace {

class Parts final : public Source {
 public:
  Parts(const std::filesystem::path& folder, std::vector<std::filesystem::path> others)
      : archive_(folder, std::move(others)) {
    archive_.require_whole();
    archive_.check_files();
  }
  [[nodiscard]] const Archive& archive() const { return archive_; }
  void read(const std::string& name,
            const mesh::Piece& want,
            DType to,
            std::byte* out) const override {
    archive_.read(name, want, to, out);
  }

 private:
  Archive archive_;
};

}  // namespace

Checkpoint open_parts(const std::filesystem::path& folder,
                      const std::vector<std::filesystem::path>& others) {
  std::shared_ptr<const Parts> parts;
  try {
    parts = std::make_shared<const Parts>(folder, others);
  } catch (const Error& error) {
    throw Error(error.kind(),
                error.what(),
                error.fix().empty() ? "name every folder that holds a part of it" : error.fix());
  }
  std::vector<Checkpoint::Tensor> tensors;
  for (const auto& [name, tensor] : parts->archive().tensors())
    tensors.push_back({name, tensor.dtype, tensor.shape});
  Meta meta = parts->archive().meta();
  return {folder, std::move(meta), std::move(tensors), std::move(parts)};
}

}  // namespace tessera::checkpoint
