"""Export and import of whole topics through files; decision 0026 gives the reasons."""
