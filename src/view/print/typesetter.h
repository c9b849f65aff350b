// Lines of text by Pango, in any script, drawn with Cairo. Text is never read as markup.
#pragma once

#include <pango/pangocairo.h>

#include <memory>
#include <string_view>
#include <vector>

#include "view/scene.h"

namespace qkv::inline v0::view {

/// The picture's font and what replaces it where it lacks a character. For one thread.
class Typesetter {
 public:
  Typesetter();

  /// Units of the layout that the text takes along its line, rounded up.
  int width(std::string_view visible, int size) const;
  /// The same and a little more, for the layout. Not for longer than this object.
  TextWidth text_width() const;

  /// Draws with the canvas's present colour.
  void draw(cairo_t* cairo, const Label& label) const;

  /// Appends the characters that no installed font has, as often as they occur.
  void append_missing(std::string_view visible, std::vector<char32_t>& out) const;

 private:
  struct Unref {
    void operator()(void* object) const { g_object_unref(object); }
  };
  void set(std::string_view visible, int size) const;

  std::unique_ptr<PangoContext, Unref> context_;
  std::unique_ptr<PangoLayout, Unref> line_;  // of the text that was set last
};

}  // namespace qkv::inline v0::view
