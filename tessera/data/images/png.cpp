// SPDX-License-Identifier: Apache-2.0
// PNG decoding with libpng. Its errors use longjmp, so no object with a destructor may live between
// the jump and its target.
#include <algorithm>
#include <csetjmp>
#include <cstring>
#include <memory>

#include <png.h>

#include "tessera/data/images/decoders.h"

namespace tessera::data::images {
namespace {

/// The state of decoding one file.
struct PngState {
  std::span<const std::byte> bytes;
  std::size_t at = 0;
  std::string error;
  png_structp png = nullptr;
  png_infop info = nullptr;
  Image image;
  std::vector<png_bytep> rows;

  ~PngState() {
    if (png != nullptr) png_destroy_read_struct(&png, &info, nullptr);
  }
};

void on_png_error(png_structp png, png_const_charp what) {
  static_cast<PngState*>(png_get_error_ptr(png))->error = what;
  png_longjmp(png, 1);
}

void on_png_warning(png_structp /*png*/, png_const_charp /*what*/) {}

void give_png_bytes(png_structp png, png_bytep to, png_size_t count) {
  auto* const state = static_cast<PngState*>(png_get_io_ptr(png));
  if (count > state->bytes.size() - state->at) png_error(png, "the file ends early");
  std::memcpy(to, state->bytes.data() + state->at, count);
  state->at += count;
}

/// Returns false if the library failed; `error` has the reason.
bool read_png_head(PngState& state) {
  if (setjmp(png_jmpbuf(state.png)) != 0) return false;
  png_read_info(state.png, state.info);
  state.image.size = {png_get_image_width(state.png, state.info),
                      png_get_image_height(state.png, state.info)};
  return true;
}

/// Converts any stored format to eight bits for each of three colours.
bool prepare_png_rows(PngState& state) {
  if (setjmp(png_jmpbuf(state.png)) != 0) return false;
  png_set_expand(state.png);
  png_set_strip_16(state.png);
  png_set_strip_alpha(state.png);
  png_set_gray_to_rgb(state.png);
  png_set_interlace_handling(state.png);
  png_read_update_info(state.png, state.info);
  return true;
}

bool read_png_rows(PngState& state) {
  if (setjmp(png_jmpbuf(state.png)) != 0) return false;
  png_read_image(state.png, state.rows.data());
  return true;
}

}  // namespace

bool is_png(std::span<const std::byte> bytes) {
  constexpr std::size_t kSignature = 8;
  return bytes.size() >= kSignature &&
         png_sig_cmp(reinterpret_cast<png_const_bytep>(bytes.data()), 0, kSignature) == 0;
}

Image decode_png(std::span<const std::byte> bytes, const std::string& place, bool whole) {
  // Limit for text and colour profile chunks, whose compression ratio may be a thousand.
  constexpr png_alloc_size_t kMostChunkBytes = 8 << 20;
  constexpr png_uint_32 kMostChunks = 256, kLongest = 1 << 16;
  const auto state = std::make_unique<PngState>();
  state->bytes = bytes;
  state->png =
      png_create_read_struct(PNG_LIBPNG_VER_STRING, state.get(), on_png_error, on_png_warning);
  if (state->png != nullptr) state->info = png_create_info_struct(state->png);
  if (state->info == nullptr) refuse_image(place, "libpng does not start");
  png_set_user_limits(state->png, kLongest, kLongest);
  png_set_chunk_malloc_max(state->png, kMostChunkBytes);
  png_set_chunk_cache_max(state->png, kMostChunks);
  png_set_keep_unknown_chunks(state->png, PNG_HANDLE_CHUNK_NEVER, nullptr, 0);
  png_set_read_fn(state->png, state.get(), give_png_bytes);
  if (!read_png_head(*state)) refuse_image(place, state->error);
  check_size(state->image.size, place);
  if (!whole) return std::move(state->image);
  if (!prepare_png_rows(*state)) refuse_image(place, state->error);
  const auto row = static_cast<std::size_t>(state->image.size.width) * 3;
  if (png_get_rowbytes(state->png, state->info) != row) refuse_image(place, "rows of odd length");
  const auto height = static_cast<std::size_t>(state->image.size.height);
  state->image.rgb.resize(row * height);
  for (std::size_t y = 0; y < height; ++y)
    state->rows.push_back(state->image.rgb.data() + y * row);
  if (!read_png_rows(*state)) refuse_image(place, state->error);
  return std::move(state->image);
}

}  // namespace tessera::data::images
