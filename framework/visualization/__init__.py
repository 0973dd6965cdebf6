"""Images with boxes and masks drawn on them, and galleries of them (``keras.visualization``)."""

from .drawing import draw_bounding_boxes, draw_segmentation_masks
from .galleries import plot_bounding_box_gallery, plot_image_gallery, plot_segmentation_mask_gallery

__all__ = [
    "draw_bounding_boxes",
    "draw_segmentation_masks",
    "plot_bounding_box_gallery",
    "plot_image_gallery",
    "plot_segmentation_mask_gallery",
]
