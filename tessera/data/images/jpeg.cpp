// SPDX-License-Identifier: Apache-2.0
// JPEG decoding with libjpeg-turbo. Its errors use longjmp, so no object with a destructor may live
// between the jump and its target.
#include <csetjmp>
#include <cstdio>  // jpeglib.h needs FILE
#include <memory>

#include <jerror.h>
#include <jpeglib.h>

#include "tessera/base/error.h"
#include "tessera/data/images/decoders.h"

namespace tessera::data::images {
namespace {

/// The state of decoding one file. `errors` is the first member, so that the library's pointer to
/// it also points to the whole.
struct JpegState {
  jpeg_error_mgr errors = {};
  std::jmp_buf jump = {};
  std::string error;
  jpeg_progress_mgr progress = {};
  jpeg_decompress_struct jpeg = {};
  bool made = false, four_colours = false;
  Image image;

  ~JpegState() {
    if (made) jpeg_destroy_decompress(&jpeg);
  }
};

void fail_jpeg(j_common_ptr jpeg) {
  auto* const state = reinterpret_cast<JpegState*>(jpeg->err);
  char text[JMSG_LENGTH_MAX] = {};
  jpeg->err->format_message(jpeg, text);
  state->error = text;
  std::longjmp(state->jump, 1);
}

/// libjpeg continues a truncated file in grey; this counts as an error. Other warnings are ignored.
void on_jpeg_message(j_common_ptr jpeg, int level) {
  if (level < 0 && jpeg->err->msg_code == JWRN_JPEG_EOF) fail_jpeg(jpeg);
}

/// Each scan of a progressive file costs the time of the whole image, and a small file may have
/// thousands.
void on_jpeg_progress(j_common_ptr jpeg) {
  constexpr int kMostScans = 100;
  if (reinterpret_cast<j_decompress_ptr>(jpeg)->input_scan_number <= kMostScans) return;
  auto* const state = reinterpret_cast<JpegState*>(jpeg->err);
  state->error = "more scans than a picture has";
  std::longjmp(state->jump, 1);
}

/// Returns false if the library failed; `error` has the reason.
bool read_jpeg_head(JpegState& state, std::span<const std::byte> bytes) {
  if (setjmp(state.jump) != 0) return false;
  jpeg_create_decompress(&state.jpeg);
  state.made = true;
  state.progress.progress_monitor = on_jpeg_progress;
  state.jpeg.progress = &state.progress;
  jpeg_mem_src(&state.jpeg,
               reinterpret_cast<const unsigned char*>(bytes.data()),
               static_cast<unsigned long>(bytes.size()));
  jpeg_read_header(&state.jpeg, TRUE);
  state.image.size = {state.jpeg.image_width, state.jpeg.image_height};
  state.four_colours = state.jpeg.num_components == 4;
  return true;
}

bool read_jpeg_rows(JpegState& state) {
  if (setjmp(state.jump) != 0) return false;
  state.jpeg.out_color_space = JCS_RGB;
  jpeg_start_decompress(&state.jpeg);
  while (state.jpeg.output_scanline < state.jpeg.output_height) {
    JSAMPROW row = state.image.rgb.data() + static_cast<std::size_t>(state.jpeg.output_scanline) *
                                                static_cast<std::size_t>(state.jpeg.output_width) *
                                                3;
    jpeg_read_scanlines(&state.jpeg, &row, 1);
  }
  jpeg_finish_decompress(&state.jpeg);
  return true;
}

}  // namespace

bool is_jpeg(std::span<const std::byte> bytes) {
  return bytes.size() >= 3 && bytes[0] == std::byte{0xFF} && bytes[1] == std::byte{0xD8} &&
         bytes[2] == std::byte{0xFF};
}

Image decode_jpeg(std::span<const std::byte> bytes, const std::string& place, bool whole) {
  const auto state = std::make_unique<JpegState>();
  state->jpeg.err = jpeg_std_error(&state->errors);
  state->errors.error_exit = fail_jpeg;
  state->errors.emit_message = on_jpeg_message;
  if (!read_jpeg_head(*state, bytes)) refuse_image(place, state->error);
  check_size(state->image.size, place);
  TESSERA_REQUIRE(!state->four_colours,
                  Unsupported,
                  place + ": a JPEG of four colours, which printers use",
                  "convert it to RGB");
  if (!whole) return std::move(state->image);
  state->image.rgb.resize(static_cast<std::size_t>(state->image.size.width) *
                          static_cast<std::size_t>(state->image.size.height) * 3);
  if (!read_jpeg_rows(*state)) refuse_image(place, state->error);
  return std::move(state->image);
}

}  // namespace tessera::data::images
