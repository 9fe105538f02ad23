"""Export and import of whole topics through files; decision 0026 has the reasons."""
